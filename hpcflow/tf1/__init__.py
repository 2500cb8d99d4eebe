"""TensorFlow 1's session harness: queue runners, coordinator, supervisor, monitored sessions."""

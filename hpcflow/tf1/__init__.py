"""TensorFlow 1's harness: queue runners, coordinator, supervisor, monitored sessions, servers."""

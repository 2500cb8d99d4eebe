"""Where values cross tasks: buckets, messages, Send and Recv, control-flow frames, step order."""

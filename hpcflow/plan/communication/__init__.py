"""Communication passes: bucketing, coalescing, Send/Recv insertion, step order, commit."""

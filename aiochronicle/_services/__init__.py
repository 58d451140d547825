"""Many queues: by name, by discovery, for requests and replies, and for replay."""

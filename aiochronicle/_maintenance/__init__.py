"""Backup, restore, repair and conversion of whole queues."""

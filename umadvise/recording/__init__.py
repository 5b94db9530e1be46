"""The record of one training step: its storages, its ops, and how to record, store and compare it."""

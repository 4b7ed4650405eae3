"""Offline replay: fold a recorded session again and compare with what really happened."""

"""What no bridge reaches: found and explained."""

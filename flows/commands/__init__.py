"""The commands of `dtml`, one file a group: options, work and printing."""

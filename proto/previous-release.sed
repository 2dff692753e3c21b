# Names of the wire contract that changed since the previous release: sed commands that rename its
# declarations. scripts/previous-release applies them, because nodes exchange numbers, not names.

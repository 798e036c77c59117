"""From compiled objects to calls: the store on disk, loading, checks before a launch, and the artifact a caller holds."""

package journal

// OpenNewer opens a journal as a later build would: with more migrations.
func OpenNewer(state string, more ...string) (*Journal, error) {
	return openWith(state, append(append(migrations{}, builtin...), more...))
}

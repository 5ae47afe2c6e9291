// Package protocol holds the words of this program and the messages that cross
// the wire between a runtime and the Veyra control plane: typed ids, roles,
// phases, failure codes, and the rules and limits of every message. It imports
// nothing of ours and does no I/O. Start reading at tasks.go.
package protocol

package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// ErrID is wrapped by every error that a Parse function of this package
// returns for an identifier that does not have its syntax.
var ErrID = errors.New("not a valid id")

type (
	// AssignmentID names the control plane's record of a funded job or of a
	// verification: a lower-case UUID, for example
	// "43725ad0-077e-46c3-a4f0-b991a459d879".
	AssignmentID string
	// LeaseID names one exclusive right to work on an assignment: a lower-case
	// UUID. A run is (AssignmentID, LeaseID).
	LeaseID string
	// QualificationID names a qualification: a lower-case UUID. With the
	// attempt it is the key of a run.
	QualificationID string
	// AgentID names this runtime at the control plane, once paired: a
	// lower-case UUID.
	AgentID string
	// RuntimeID names the identity of an instance for life, for example
	// "runtime-43725ad0-077e-46c3-a4f0-b991a459d879" (protocol section 3).
	RuntimeID string
)

// ParseUUID returns s if it is a UUID in lower-case hexadecimal with its four
// dashes. Ids become file names, labels and parts of signed texts, so nothing
// else passes (attack case G13).
func ParseUUID(s string) (string, error) {
	if len(s) != 36 {
		return "", fmt.Errorf("uuid of %d bytes: %w", len(s), ErrID)
	}
	for i := range len(s) {
		if !uuidByte(s[i], i) {
			return "", fmt.Errorf("uuid with a wrong byte at %d: %w", i, ErrID)
		}
	}
	return s, nil
}

func uuidByte(b byte, at int) bool {
	switch at {
	case 8, 13, 18, 23:
		return b == '-'
	}
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'f'
}

// ParseRuntimeID returns s as a RuntimeID if it is "runtime-" and a UUID.
func ParseRuntimeID(s string) (RuntimeID, error) {
	uuid, found := strings.CutPrefix(s, "runtime-")
	if !found {
		return "", fmt.Errorf("runtime id without its prefix: %w", ErrID)
	}
	if _, err := ParseUUID(uuid); err != nil {
		return "", fmt.Errorf("runtime id: %w", err)
	}
	return RuntimeID(s), nil
}

// Instance returns the first eight hex digits of the id's UUID: the label that
// everything of this instance on the host carries.
func (id RuntimeID) Instance() string {
	uuid := strings.TrimPrefix(string(id), "runtime-")
	return uuid[:min(8, len(uuid))]
}

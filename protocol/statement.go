package protocol

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrStatement is wrapped by the error for a statement whose fields do not have
// their syntax. Nothing is signed then.
var ErrStatement = errors.New("not a valid statement")

// The texts that are signed. Each begins with its kind, and no field can hold
// the colon that separates fields, so no text has a second meaning (attack case
// H06).
const (
	connectPrefix       = "veyra-connect-v1:"
	qualificationPrefix = "veyra-qualification-v1:"
	jobResultPrefix     = "veyra-job-result-v1:"
	verifierPrefix      = "veyra-verifier-result-v1:"
)

// ConnectStatement returns the text that answers a challenge.
func ConnectStatement(challenge string, id RuntimeID) (string, error) {
	if !ValidChallenge(challenge) {
		return "", fmt.Errorf("stating connection: challenge: %w", ErrStatement)
	}
	if _, err := ParseRuntimeID(string(id)); err != nil {
		return "", fmt.Errorf("stating connection: runtime id: %w", ErrStatement)
	}
	return connectPrefix + challenge + ":" + string(id), nil
}

// QualificationStatement returns the text that vouches for a qualification:
// filesHash is the hash of the canonical list of files as 64 lower-case hex
// digits, returnCode the test command's.
func QualificationStatement(id QualificationID, filesHash string, returnCode int) (string, error) {
	if _, err := ParseUUID(string(id)); err != nil {
		return "", fmt.Errorf("stating qualification: id: %w", ErrStatement)
	}
	if !ValidHash(filesHash) {
		return "", fmt.Errorf("stating qualification: hash: %w", ErrStatement)
	}
	return qualificationPrefix + string(id) + ":" + filesHash + ":" + strconv.Itoa(returnCode), nil
}

// JobResultStatement returns the text that vouches for a job's evidence:
// evidenceHash is "0x" and 64 lower-case hex digits.
func JobResultStatement(assignment AssignmentID, lease LeaseID, evidenceHash string) (string, error) {
	return resultStatement(jobResultPrefix, string(assignment), lease, evidenceHash)
}

// VerifierStatement returns the text that vouches for a verifier's report,
// whose hash has the form of JobResultStatement's.
func VerifierStatement(verification string, lease LeaseID, reportHash string) (string, error) {
	return resultStatement(verifierPrefix, verification, lease, reportHash)
}

func resultStatement(prefix, id string, lease LeaseID, hash string) (string, error) {
	if _, err := ParseUUID(id); err != nil {
		return "", fmt.Errorf("stating result: id: %w", ErrStatement)
	}
	if _, err := ParseUUID(string(lease)); err != nil {
		return "", fmt.Errorf("stating result: lease id: %w", ErrStatement)
	}
	digits, found := strings.CutPrefix(hash, "0x")
	if !found || !ValidHash(digits) {
		return "", fmt.Errorf("stating result: hash: %w", ErrStatement)
	}
	return prefix + id + ":" + string(lease) + ":" + hash, nil
}

// ValidHash tells whether s is a SHA-256 as 64 lower-case hex digits.
func ValidHash(s string) bool { return len(s) == 64 && isHex(s) }

// ValidCommit tells whether s is a git object id as 40 lower-case hex digits.
func ValidCommit(s string) bool { return len(s) == 40 && isHex(s) }

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

package signer

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Signature is an Ed25519 signature as the wire carries it: base64url without
// padding, 86 characters (protocol section 1).
type Signature string

// Statement is one of the four things that the key signs. Its texts differ in
// their first word and hold no free text between colons, so that no signed text
// reads as another statement (attack case H06).
type Statement interface {
	kind() string
	// text validates the fields, in the signer's process too, and returns what
	// is signed.
	text() (string, error)
}

type (
	// Connect proves to the control plane that this runtime holds the key
	// (protocol section 3). RuntimeID must be the identity's own.
	Connect struct {
		Challenge string             `json:"challenge"`
		RuntimeID protocol.RuntimeID `json:"runtime_id"`
	}
	// Qualification covers the submitted files by the SHA-256 of their
	// canonical JSON, 64 lower-case hex digits, and the test's return code
	// (protocol section 5).
	Qualification struct {
		ID        protocol.QualificationID `json:"id"`
		FilesHash string                   `json:"files_hash"`
		Code      int                      `json:"code"`
	}
	// JobResult covers a job's evidence by its hash, "0x" and 64 lower-case hex
	// digits (protocol section 6).
	JobResult struct {
		Assignment   protocol.AssignmentID `json:"assignment"`
		Lease        protocol.LeaseID      `json:"lease"`
		EvidenceHash string                `json:"evidence_hash"`
	}
	// Verifier covers a verifier's report in the same way (protocol section 7).
	Verifier struct {
		ID         protocol.AssignmentID `json:"id"`
		Lease      protocol.LeaseID      `json:"lease"`
		ReportHash string                `json:"report_hash"`
	}
)

// The words that name a statement on the socket and in the log.
const (
	kindConnect       = "connect"
	kindQualification = "qualification"
	kindJobResult     = "job_result"
	kindVerifier      = "verifier_result"
)

func (Connect) kind() string       { return kindConnect }
func (Qualification) kind() string { return kindQualification }
func (JobResult) kind() string     { return kindJobResult }
func (Verifier) kind() string      { return kindVerifier }

// maxCode bounds a return code both ways: a shell's 0 to 255, and Python's
// negative numbers for signals.
const maxCode = 255

func (c Connect) text() (string, error) {
	return refused(protocol.ConnectStatement(c.Challenge, c.RuntimeID))
}

func (q Qualification) text() (string, error) {
	if q.Code < -maxCode || q.Code > maxCode {
		return "", fmt.Errorf("return code %d: %w", q.Code, ErrRefused)
	}
	return refused(protocol.QualificationStatement(q.ID, q.FilesHash, q.Code))
}

func (j JobResult) text() (string, error) {
	return refused(protocol.JobResultStatement(j.Assignment, j.Lease, j.EvidenceHash))
}

func (v Verifier) text() (string, error) {
	return refused(protocol.VerifierStatement(string(v.ID), v.Lease, v.ReportHash))
}

func refused(text string, err error) (string, error) {
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return text, nil
}

// parseStatement reads the fields of a statement that is named by its kind. The
// caller compares what parsed with what came: encoding/json alone would take
// other spellings and repeated names.
func parseStatement(kind string, fields json.RawMessage) (Statement, error) {
	switch kind {
	case kindConnect:
		return parseFields[Connect](fields)
	case kindQualification:
		return parseFields[Qualification](fields)
	case kindJobResult:
		return parseFields[JobResult](fields)
	case kindVerifier:
		return parseFields[Verifier](fields)
	}
	return nil, fmt.Errorf("unknown statement: %w", ErrRefused)
}

func parseFields[S Statement](fields json.RawMessage) (Statement, error) {
	var s S
	if err := json.Unmarshal(fields, &s); err != nil {
		return nil, fmt.Errorf("fields of %s: %w", s.kind(), ErrRefused)
	}
	return s, nil
}

func sign(key ed25519.PrivateKey, text string) Signature {
	return Signature(base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(text))))
}

// valid reports whether a signature stands for this text and has the one
// spelling that sign writes.
func (s Signature) valid(key ed25519.PublicKey, text string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(string(s))
	return err == nil && ed25519.Verify(key, []byte(text), raw)
}

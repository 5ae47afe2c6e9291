package signer

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// The socket is SOCK_SEQPACKET: one JSON text a packet, never more than
// maxPacket bytes. The signer speaks first (hello), then answers each request.

// maxPacket bounds both directions. The longest request, a challenge of 256
// bytes, has under 500.
const maxPacket = 4096

type request struct {
	// N numbers the requests, so that an answer that comes after its asker
	// gave up isn't taken for the next one's.
	N      uint64          `json:"n"`
	Kind   string          `json:"statement"`
	Fields json.RawMessage `json:"fields"`
}

type answer struct {
	N         uint64    `json:"n"`
	Signature Signature `json:"signature,omitempty"`
	// Error is one of the words below, Detail a sentence for the log.
	Error  string `json:"error,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Hello is in the first answer only.
	Hello *hello `json:"hello,omitempty"`
}

type hello struct {
	RuntimeID  protocol.RuntimeID `json:"runtime_id"`
	PublicKey  []byte             `json:"public_key"`
	Weakenings []string           `json:"weakenings,omitempty"`
}

const (
	errorRefused = "refused"
	errorLog     = "log"
	errorState   = "state"
	errorOther   = "other"
)

func encodeRequest(n uint64, s Statement) ([]byte, error) {
	fields, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding a statement: %w", err)
	}
	return json.Marshal(request{N: n, Kind: s.kind(), Fields: fields})
}

// decodeRequest takes exactly what encodeRequest writes: it encodes again what
// it read and compares. The number is returned also for a refused statement.
func decodeRequest(packet []byte) (n uint64, s Statement, err error) {
	if len(packet) > maxPacket {
		return 0, nil, fmt.Errorf("request of more than %d bytes: %w", maxPacket, ErrRefused)
	}
	var r request
	if err := json.Unmarshal(packet, &r); err != nil {
		return 0, nil, fmt.Errorf("request is not JSON: %w", ErrRefused)
	}
	s, err = parseStatement(r.Kind, r.Fields)
	if err != nil {
		return r.N, nil, err
	}
	again, err := encodeRequest(r.N, s)
	if err != nil || !bytes.Equal(again, packet) {
		return r.N, nil, fmt.Errorf("request has other fields or another form: %w", ErrRefused)
	}
	return r.N, s, nil
}

package signer

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Plant makes a state directory that holds a known identity, by the functions
// that make the first one.
func Plant(state string, seed []byte, runtimeID protocol.RuntimeID) error {
	id := &identity{runtimeID: runtimeID, key: ed25519.NewKeyFromSeed(seed)}
	if err := writeIdentity(filepath.Join(state, "identity", keyDir), id); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(state, LogName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	log, _, err := openLedger(int(file.Fd()))
	if err != nil {
		return err
	}
	return log.begin(id)
}

// SendRaw sends a packet that no Statement makes and returns the answer's
// signature and failure.
func (c *Client) SendRaw(packet []byte) (Signature, error) {
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	if _, err := c.conn.Write(packet); err != nil {
		return "", err
	}
	got, err := readAnswer(c.conn)
	if err != nil {
		return "", err
	}
	return got.Signature, got.failure()
}

// DecodeRequest and EncodeRequest are what the fuzz test compares.
var (
	DecodeRequest = decodeRequest
	EncodeRequest = encodeRequest
)

// Text is what would be signed.
func Text(s Statement) (string, error) { return s.text() }

// CheckLog reads a log's text and returns how many bytes of whole lines it has.
func CheckLog(text string) (whole int64, err error) {
	read, err := readLog(strings.NewReader(text))
	if err != nil {
		return 0, err
	}
	return read.size, nil
}

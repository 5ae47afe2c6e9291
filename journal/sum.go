package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
)

// rowSum is the checksum of a row: SHA-256 over its columns in their order, each
// with its length, so that no two rows share a text.
func rowSum(columns ...any) []byte {
	hash := sha256.New()
	var length [8]byte
	for _, column := range columns {
		var text []byte
		switch value := column.(type) {
		case int64:
			text = binary.BigEndian.AppendUint64(nil, uint64(value))
		case string:
			text = []byte(value)
		case []byte:
			text = value
		}
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		hash.Write(length[:])
		hash.Write(text)
	}
	return hash.Sum(nil)
}

// checkSum compares a stored checksum with its row.
func checkSum(table string, sum []byte, columns ...any) error {
	if !bytes.Equal(sum, rowSum(columns...)) {
		return fmt.Errorf("a row of %s does not have its checksum: %w", table, ErrState)
	}
	return nil
}

// hashFits reports whether hash is the SHA-256 of body, with or without "0x".
func hashFits(hash string, body []byte) bool {
	return strings.TrimPrefix(hash, "0x") == fmt.Sprintf("%x", sha256.Sum256(body))
}

package gitops

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
)

// coder appends fields to a payload: numbers as varints, texts with their
// length before them, ids and digests as they are.
type coder struct{ b []byte }

func (c *coder) number(n uint64) { c.b = binary.AppendUvarint(c.b, n) }
func (c *coder) signed(n int64)  { c.b = binary.AppendVarint(c.b, n) }
func (c *coder) octet(n byte)    { c.b = append(c.b, n) }
func (c *coder) digest(d Digest) { c.b = append(c.b, d[:]...) }
func (c *coder) id(id ObjectID)  { r := id.raw(); c.b = append(c.b, r[:]...) }
func (c *coder) text(s string)   { c.number(uint64(len(s))); c.b = append(c.b, s...) }
func (c *coder) flag(set bool)   { c.octet(map[bool]byte{true: 1}[set]) }

var errPayload = errors.New("payload has the wrong length or value")

// decoder reads fields back. The first error sticks; end reports it, and left
// over bytes, so that every payload has one reading only.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() { d.err, d.b = errPayload, nil }

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.fail()
		return make([]byte, max(0, min(n, 32)))
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) number() uint64 {
	n, used := binary.Uvarint(d.b)
	if used <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[used:]
	return n
}

func (d *decoder) signed() int64 {
	n, used := binary.Varint(d.b)
	if used <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[used:]
	return n
}

// size reads a byte count: not negative as int64.
func (d *decoder) size() int64 {
	n := d.number()
	if n > math.MaxInt64 {
		d.fail()
		return 0
	}
	return int64(n)
}

func (d *decoder) octet() byte { return d.take(1)[0] }

func (d *decoder) digest() Digest { return Digest(d.take(len(Digest{}))) }

func (d *decoder) id() ObjectID { return ObjectID(hex.EncodeToString(d.take(20))) }

func (d *decoder) flag() bool {
	n := d.octet()
	if n > 1 {
		d.fail()
	}
	return n == 1
}

func (d *decoder) text(limit int) string {
	n := d.number()
	if n > uint64(limit) || n > uint64(len(d.b)) {
		d.fail()
		return ""
	}
	return string(d.take(int(n)))
}

func (d *decoder) end(what string) error {
	if d.err == nil && len(d.b) > 0 {
		d.err = errPayload
	}
	if d.err != nil {
		return fmt.Errorf("decoding %s frame: %w", what, d.err)
	}
	return nil
}

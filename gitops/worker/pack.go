package worker

import (
	"compress/zlib"
	"encoding/binary"
	"hash"
	"io"

	"github.com/pjbgf/sha1cd"
)

// packWriter writes a pack of whole objects: no deltas, nothing left out that
// the other side might have, so that the answer depends on the change alone.
type packWriter struct {
	w   io.Writer
	sum hash.Hash
	zw  *zlib.Writer
	err error
}

// newPackWriter begins a pack of exactly count objects.
func newPackWriter(w io.Writer, count int) *packWriter {
	p := &packWriter{sum: sha1cd.New()}
	p.w = io.MultiWriter(w, p.sum)
	head := append([]byte("PACK"), 0, 0, 0, 2)
	p.put(binary.BigEndian.AppendUint32(head, uint32(count)))
	return p
}

func (p *packWriter) put(b []byte) {
	if p.err == nil {
		_, p.err = p.w.Write(b)
	}
}

// object adds one object of size bytes.
func (p *packWriter) object(kind byte, size int64, content io.Reader) error {
	p.put(objectHeader(kind, size))
	if p.err != nil {
		return p.err
	}
	if p.zw == nil {
		p.zw = zlib.NewWriter(p.w)
	} else {
		p.zw.Reset(p.w)
	}
	if _, p.err = io.CopyN(p.zw, content, size); p.err == nil {
		p.err = p.zw.Close()
	}
	return p.err
}

func objectHeader(kind byte, size int64) []byte {
	b := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	return b
}

// end writes the checksum.
func (p *packWriter) end() error {
	p.put(p.sum.Sum(nil))
	return p.err
}

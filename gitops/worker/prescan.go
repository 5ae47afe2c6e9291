package worker

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// Object types of a pack (man page gitformat-pack).
const (
	packCommit   = 1
	packTree     = 2
	packBlob     = 3
	packTag      = 4
	packOfsDelta = 6
	packRefDelta = 7
)

const prescanOp = "scanning pack"

func tooLarge(format string, args ...any) error {
	return gitops.Errorf(gitops.KindTooLarge, prescanOp, format, args...)
}

func unsupported(format string, args ...any) error {
	return gitops.Errorf(gitops.KindUnsupported, prescanOp, format, args...)
}

// prescan copies a pack from r to w and walks it while it passes by, with one
// inflate and no delta resolved. It holds every declared number against the
// bounds before anything is allocated or computed from it: 64 KB of valid pack
// can ask for gigabytes. The checksum and the end of the stream are checked.
func prescan(r io.Reader, w io.Writer, lim gitops.Limits) error {
	s := &scan{src: newSource(r, w, lim.Pack), lim: lim}
	err := s.pack()
	if err == nil {
		err = s.src.finish()
	}
	return s.src.explain(err)
}

type scan struct {
	src   *source
	lim   gitops.Limits
	zr    io.ReadCloser
	total int64 // inflated bytes of all objects once resolved
	// Where objects begin and how many deltas lie on top of each other there.
	offsets []int64
	depths  []uint16
}

func (s *scan) pack() error {
	var head [12]byte
	if _, err := io.ReadFull(s.src, head[:]); err != nil {
		return err
	}
	if !bytes.Equal(head[:8], []byte("PACK\x00\x00\x00\x02")) {
		return unsupported("not a pack of version 2")
	}
	count := int64(binary.BigEndian.Uint32(head[8:]))
	if count > s.lim.Objects {
		return tooLarge("%d objects", count)
	}
	for range count {
		if err := s.object(); err != nil {
			return err
		}
	}
	return s.trailer()
}

func (s *scan) object() error {
	start := s.src.at
	kind, size, err := s.header()
	if err != nil {
		return err
	}
	depth := 0
	switch kind {
	case packCommit, packTree, packBlob, packTag:
		err = s.account(size)
	case packOfsDelta:
		depth, err = s.base(start)
	case packRefDelta: // the parser bounds these chains itself
		_, err = io.ReadFull(s.src, make([]byte, 20))
	default:
		err = unsupported("object of type %d", kind)
	}
	if err != nil {
		return err
	}
	s.offsets, s.depths = append(s.offsets, start), append(s.depths, uint16(depth))
	return s.content(size, kind == packOfsDelta || kind == packRefDelta)
}

// header reads type and size: three bits and a varint.
func (s *scan) header() (kind byte, size int64, err error) {
	b, err := s.src.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	kind, size = b>>4&7, int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = s.src.ReadByte(); err != nil {
			return 0, 0, err
		}
		if shift > 50 {
			return 0, 0, tooLarge("an object's size is beyond all bounds")
		}
		size |= int64(b&0x7f) << shift
	}
	if size > s.lim.Object {
		return 0, 0, tooLarge("object of %d bytes", size)
	}
	return kind, size, nil
}

// account adds the size of a resolved object to the total.
func (s *scan) account(size int64) error {
	if size > s.lim.Object {
		return tooLarge("object of %d bytes", size)
	}
	if s.total += size; s.total > s.lim.Inflated {
		return tooLarge("more than %d bytes inflated", s.lim.Inflated)
	}
	return nil
}

// base reads the distance to a delta's base, which must be the start of an
// earlier object, and gives the depth of the new chain.
func (s *scan) base(start int64) (int, error) {
	b, err := s.src.ReadByte()
	if err != nil {
		return 0, err
	}
	back := int64(b & 0x7f)
	for b&0x80 != 0 {
		if b, err = s.src.ReadByte(); err != nil {
			return 0, err
		}
		if back = (back+1)<<7 | int64(b&0x7f); back > start {
			return 0, unsupported("delta base before the pack's start")
		}
	}
	i, ok := slices.BinarySearch(s.offsets, start-back)
	if !ok {
		return 0, unsupported("delta base where no object begins")
	}
	depth := int(s.depths[i]) + 1
	if depth > s.lim.Chain {
		return 0, tooLarge("more than %d deltas on top of each other", s.lim.Chain)
	}
	return depth, nil
}

// content inflates one object into nothing and compares its length with the
// declared one.
func (s *scan) content(size int64, delta bool) error {
	if err := s.inflate(); err != nil {
		return err
	}
	body := &counted{r: io.LimitReader(s.zr, size+1)}
	if delta {
		if err := s.target(body); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	if body.n != size {
		return unsupported("object of %d bytes holds more or fewer", size)
	}
	return nil
}

func (s *scan) inflate() (err error) {
	if s.zr == nil {
		s.zr, err = zlib.NewReader(s.src)
		return err
	}
	return s.zr.(zlib.Resetter).Reset(s.src, nil)
}

// target reads the two sizes at a delta's start and accounts for the second:
// what the delta would become.
func (s *scan) target(body io.ByteReader) error {
	for i := range 2 {
		n, err := binary.ReadUvarint(body)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return unsupported("delta without sizes")
		}
		if err != nil {
			return err
		}
		if n > uint64(s.lim.Object) {
			return tooLarge("delta of an object of %d bytes", n)
		}
		if i == 1 {
			return s.account(int64(n))
		}
	}
	return nil
}

// counted counts what is read, byte by byte or not.
type counted struct {
	r io.Reader
	n int64
	b [1]byte
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counted) ReadByte() (byte, error) {
	_, err := io.ReadFull(c, c.b[:])
	return c.b[0], err
}

// trailer compares the checksum at the pack's end with the bytes before it.
func (s *scan) trailer() error {
	want := s.src.sum()
	var got [20]byte
	if _, err := io.ReadFull(s.src, got[:]); err != nil {
		return err
	}
	if !bytes.Equal(want, got[:]) {
		return unsupported("wrong checksum")
	}
	if _, err := s.src.ReadByte(); !errors.Is(err, io.EOF) {
		return unsupported("bytes after the pack's end")
	}
	return nil
}

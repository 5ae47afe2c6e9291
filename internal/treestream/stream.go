package treestream

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// magic begins each stream; the byte after it holds the header's flags.
const magic = "veyratree1\n"

// allowLinks is the header's only flag.
const allowLinks = 1

// fixed is the length of what all entries have besides path and target: kind,
// mode, mtime, size, links, length of path, length of target.
const fixed = 1 + 4 + 8 + 8 + 4 + 2 + 2

const bufferBytes = 64 << 10

// Options of a stream.
type Options struct {
	// Links allows that symbolic links are made when the stream is unpacked.
	Links bool
	// Limits of what is written.
	Limits Limits
}

// Writer writes one stream. It is used by one goroutine. After an error the
// stream is broken and every further call returns that error.
type Writer struct {
	w   *bufio.Writer
	o   order
	err error
}

// NewWriter begins a stream. Close ends it.
func NewWriter(w io.Writer, opts Options) *Writer {
	out := &Writer{w: bufio.NewWriterSize(w, bufferBytes), o: order{limits: opts.Limits}}
	flags := byte(0)
	if opts.Links {
		flags |= allowLinks
	}
	_, _ = out.w.WriteString(magic) // bufio keeps the error until Flush
	_ = out.w.WriteByte(flags)
	return out
}

// Add writes one entry, a File with exactly e.Size bytes of content. Entries
// come in the order of Less. Errors: ErrFormat, ErrLimit, those of content and
// of the stream below; io.ErrUnexpectedEOF when content is shorter.
func (w *Writer) Add(e Entry, content io.Reader) error {
	if w.err == nil {
		w.err = w.add(e, content)
	}
	return w.err
}

func (w *Writer) add(e Entry, content io.Reader) error {
	if err := w.o.check(e); err != nil {
		return err
	}
	if err := w.put(e); err != nil {
		return err
	}
	if e.Kind != File || e.Size == 0 {
		return nil
	}
	_, err := io.CopyN(w.w, content, e.Size)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("copying content of %q: %w", e.Path, err)
	}
	return nil
}

func (w *Writer) put(e Entry) error {
	b := make([]byte, 0, fixed+len(e.Path)+len(e.Target))
	b = append(b, byte(e.Kind))
	b = binary.BigEndian.AppendUint32(b, e.Mode)
	b = binary.BigEndian.AppendUint64(b, uint64(e.MTime))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Size))
	b = binary.BigEndian.AppendUint32(b, e.Links)
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.Path)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.Target)))
	b = append(b, e.Path...)
	b = append(b, e.Target...)
	if _, err := w.w.Write(b); err != nil {
		return fmt.Errorf("writing entry %q: %w", e.Path, err)
	}
	return nil
}

// Close writes the end with its sums, without which a stream counts as cut. It
// doesn't close the stream below.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	// The end's sums stand in the fields for mtime (entries) and size (bytes).
	w.err = w.put(Entry{Kind: end, MTime: w.o.entries, Size: w.o.bytes})
	if err := w.w.Flush(); w.err == nil && err != nil {
		w.err = fmt.Errorf("writing end of tree: %w", err)
	}
	if w.err != nil {
		return w.err
	}
	w.err = errors.New("tree stream is closed")
	return nil
}

// Reader reads one stream and believes none of it: see ValidPath, Less, Limits.
// It holds one entry in memory and no content. Used by one goroutine.
type Reader struct {
	r     *bufio.Reader
	o     order
	links bool
	left  int64 // of the current file's content
	err   error // sticky; io.EOF after the end
}

// NewReader reads the header from r. Errors: ErrFormat and those of r.
func NewReader(r io.Reader, limits Limits) (*Reader, error) {
	in := &Reader{r: bufio.NewReaderSize(r, bufferBytes), o: order{limits: limits}}
	head := make([]byte, len(magic)+1)
	if _, err := io.ReadFull(in.r, head); err != nil {
		return nil, fmt.Errorf("reading head of tree: %w", cut(err))
	}
	flags := head[len(magic)]
	if string(head[:len(magic)]) != magic || flags&^allowLinks != 0 {
		return nil, fmt.Errorf("reading head of tree: %w", ErrFormat)
	}
	in.links = flags&allowLinks != 0
	return in, nil
}

// Links reports whether whoever unpacks may make symbolic links.
func (r *Reader) Links() bool { return r.links }

// Next returns the next entry, skipping content that was not read, and io.EOF
// after the end of the tree. Errors: ErrFormat, ErrLimit, io.ErrUnexpectedEOF
// for a stream without its end, and those of the reader below.
func (r *Reader) Next() (Entry, error) {
	if r.err != nil {
		return Entry{}, r.err
	}
	e, err := r.next()
	r.err = err
	return e, err
}

func (r *Reader) next() (Entry, error) {
	if _, err := io.CopyN(io.Discard, r.r, r.left); err != nil {
		return Entry{}, fmt.Errorf("skipping content of %q: %w", r.o.last, cut(err))
	}
	r.left = 0
	e, err := r.get()
	if err != nil {
		return Entry{}, err
	}
	if e.Kind == end {
		return Entry{}, r.sums(e)
	}
	if err := r.o.check(e); err != nil {
		return Entry{}, err
	}
	r.left = e.Size
	return e, nil
}

func (r *Reader) get() (Entry, error) {
	var b [fixed]byte
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return Entry{}, fmt.Errorf("reading entry after %q: %w", r.o.last, cut(err))
	}
	e := Entry{
		Kind: Kind(b[0]), Mode: binary.BigEndian.Uint32(b[1:]), MTime: int64(binary.BigEndian.Uint64(b[5:])),
		Size: int64(binary.BigEndian.Uint64(b[13:])), Links: binary.BigEndian.Uint32(b[21:]),
	}
	pathLen, targetLen := int(binary.BigEndian.Uint16(b[25:])), int(binary.BigEndian.Uint16(b[27:]))
	if pathLen > MaxPath || targetLen > MaxTarget {
		return Entry{}, fmt.Errorf("path after %q: %w", r.o.last, ErrFormat)
	}
	text := make([]byte, pathLen+targetLen)
	if _, err := io.ReadFull(r.r, text); err != nil {
		return Entry{}, fmt.Errorf("reading entry after %q: %w", r.o.last, cut(err))
	}
	e.Path, e.Target = string(text[:pathLen]), string(text[pathLen:])
	return e, nil
}

// sums compares the end with what was read; nil becomes io.EOF.
func (r *Reader) sums(e Entry) error {
	if e != (Entry{Kind: end, MTime: r.o.entries, Size: r.o.bytes}) {
		return fmt.Errorf("sums at the end of tree: %w", ErrFormat)
	}
	return io.EOF
}

// Read reads content of the current File; io.EOF at its end.
func (r *Reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	if err != nil {
		r.err = fmt.Errorf("reading content of %q: %w", r.o.last, cut(err))
		return n, r.err
	}
	return n, nil
}

// cut is an end of input where more had to come.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

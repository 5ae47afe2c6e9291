package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A pkt-line is four hex digits of length, which counts itself, and a payload
// (man page gitprotocol-common). Lengths 0 to 2 are marks without payload.
const (
	pktMax  = 65520
	pktHead = 4
)

type pktKind uint8

const (
	pktText pktKind = iota
	pktFlush
	pktDelim
	pktEnd
)

var (
	errPkt = errors.New("broken pkt-line")
	errCap = errors.New("answer over its bound")
)

// pktReader reads pkt-lines of a stream that has at most left bytes.
type pktReader struct {
	r    *bufio.Reader
	left int64
	buf  [pktMax]byte
}

func newPktReader(r io.Reader, limit int64) *pktReader {
	return &pktReader{r: bufio.NewReaderSize(r, pktMax), left: limit}
}

// next gives the next line; its payload is valid until the following call. At
// the end of the stream between two lines the error is io.EOF.
func (p *pktReader) next() (pktKind, []byte, error) {
	var head [pktHead]byte
	if err := p.fill(head[:]); err != nil {
		return 0, nil, err
	}
	n, err := pktLength(head)
	if err != nil {
		return 0, nil, err
	}
	if n < pktHead {
		return [...]pktKind{pktFlush, pktDelim, pktEnd}[n], nil, nil
	}
	payload := p.buf[:n-pktHead]
	if err := p.fill(payload); err != nil {
		return 0, nil, noEOF(err)
	}
	if text, ok := bytes.CutPrefix(payload, []byte("ERR ")); ok {
		return 0, nil, &serverError{text: string(text[:min(len(text), 512)])}
	}
	return pktText, payload, nil
}

func (p *pktReader) fill(b []byte) error {
	if p.left -= int64(len(b)); p.left < 0 {
		return errCap
	}
	_, err := io.ReadFull(p.r, b)
	return err
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func pktLength(head [pktHead]byte) (int, error) {
	n := 0
	for _, c := range head {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | int(c-'0')
		case 'a' <= c && c <= 'f':
			n = n<<4 | int(c-'a'+10)
		case 'A' <= c && c <= 'F':
			n = n<<4 | int(c-'A'+10)
		default:
			return 0, fmt.Errorf("length %q: %w", head[:], errPkt)
		}
	}
	if n == 3 || n > pktMax {
		return 0, fmt.Errorf("length %d: %w", n, errPkt)
	}
	return n, nil
}

// serverError is an ERR line, which may come with status 200. Its text is a
// stranger's and only ever shown quoted.
type serverError struct {
	text string
	want bool // it refused what was wanted
}

func (e *serverError) Error() string { return fmt.Sprintf("server says %q", shorten(e.text)) }

func shorten(s string) string { return strings.TrimSpace(s[:min(len(s), 300)]) }

// line cuts the newline that ends a text line.
func line(payload []byte) string { return strings.TrimSuffix(string(payload), "\n") }

// pktLine frames one line; the texts of this package are far below the bound.
func pktLine(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	return fmt.Sprintf("%04x%s", len(text)+pktHead, text)
}

const (
	flushPkt = "0000"
	delimPkt = "0001"
)

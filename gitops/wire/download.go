package wire

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxProgress bounds progress texts, which were not asked for, in bytes.
const maxProgress = 1 << 20

// maxPreface bounds the lines before a pack: a deep but cut history has one for
// each place where it is cut.
const maxPreface = 100_000

var errAnswer = errors.New("answer breaks the protocol")

// download takes the pack out of a fetch's answer.
type download struct {
	p        *pktReader
	out      io.Writer
	max      int64
	got      int64
	progress int64
	log      func(string)
}

func (d *download) run(version int) error {
	var err error
	if version == 2 {
		err = d.sections()
	} else {
		err = d.preamble()
	}
	if err != nil {
		return noEOF(err)
	}
	return d.bands()
}

// sections skips what stands before the packfile section: shallow commits and
// whatever a server may add later.
func (d *download) sections() error {
	for range maxPreface {
		kind, b, err := d.p.next()
		switch {
		case err != nil:
			return wanted(err)
		case kind == pktText && line(b) == "packfile":
			return nil
		case kind == pktFlush || kind == pktEnd:
			return fmt.Errorf("no packfile section: %w", errAnswer)
		}
	}
	return fmt.Errorf("no packfile section in %d lines: %w", maxPreface, errAnswer)
}

// preamble is the older answer's start: shallow lines and a flush, then NAK.
func (d *download) preamble() error {
	for range maxPreface {
		kind, b, err := d.p.next()
		switch text := line(b); {
		case err != nil:
			return wanted(err)
		case kind != pktText || strings.HasPrefix(text, "shallow ") || strings.HasPrefix(text, "unshallow "):
		case text == "NAK":
			return nil
		default:
			return fmt.Errorf("line %.40q before the pack: %w", text, errAnswer)
		}
	}
	return fmt.Errorf("no pack in %d lines: %w", maxPreface, errAnswer)
}

// wanted marks a refusal that came in the place of the pack's start.
func wanted(err error) error {
	var said *serverError
	if errors.As(err, &said) {
		said.want = true
	}
	return err
}

// bands copies band 1 to the receiver until the flush. Band 2 is progress,
// band 3 the server's last words.
func (d *download) bands() error {
	for {
		kind, b, err := d.p.next()
		if err != nil {
			return noEOF(err)
		}
		if kind != pktText {
			return nil
		}
		if err := d.band(b); err != nil {
			return err
		}
	}
}

func (d *download) band(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("line without band: %w", errAnswer)
	}
	switch b[0] {
	case 1:
		return d.write(b[1:])
	case 2:
		if d.progress += int64(len(b)); d.progress > maxProgress {
			return fmt.Errorf("more than %d bytes of progress: %w", maxProgress, errAnswer)
		}
		return nil
	case 3:
		d.log(string(b[1:]))
		return &serverError{text: string(b[1:])}
	}
	return fmt.Errorf("band %d: %w", b[0], errAnswer)
}

func (d *download) write(b []byte) error {
	if d.got += int64(len(b)); d.got > d.max {
		return &Error{Kind: ErrTooLarge, Op: "fetching pack"}
	}
	if _, err := d.out.Write(b); err != nil {
		return fail(ErrReceiver, "fetching pack", "%w", err)
	}
	return nil
}

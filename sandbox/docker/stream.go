package docker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/linux"
)

// pump joins the engine's connection to PID 1 with the pipes that the supervisor
// holds. It takes the engine's eight-byte headers off and looks at nothing else.
//
// It must never stop reading: an engine whose attached client doesn't read can
// neither end nor remove the container, and answers no question about it. While
// the supervisor takes output slowly, so does the pump, and the job waits; from
// drop on everything is read and dropped.
type pump struct {
	stream *stream
	stdin  *os.File      // what the supervisor writes
	stdout *os.File      // what the supervisor reads
	noise  *linux.Tail   // what PID 1 wrote to its standard error
	ended  chan struct{} // the engine says no more
}

// newPump makes the pipes and begins to pump. The caller closes the ends that it
// gets.
func newPump(s *stream) (*pump, sandbox.Pipes, error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, sandbox.Pipes{}, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		_, _ = inRead.Close(), inWrite.Close()
		return nil, sandbox.Pipes{}, err
	}
	p := &pump{stream: s, stdin: inRead, stdout: outWrite, noise: &linux.Tail{}, ended: make(chan struct{})}
	go p.in()
	go p.out()
	return p, sandbox.Pipes{Stdin: inWrite, Stdout: outRead}, nil
}

// in ends when the supervisor closes its pipe, or with the connection. Either
// closes the standard input of PID 1, which ends with it.
func (p *pump) in() {
	_, _ = io.Copy(p.stream.conn, p.stdin)
	_ = p.stream.closeWrite()
}

func (p *pump) out() {
	defer close(p.ended)
	defer p.stdout.Close()
	_ = demux(spill{p.stdout}, p.noise, p.stream)
	// Whatever broke the headers: the engine must get rid of the rest.
	_, _ = io.Copy(io.Discard, p.stream)
}

// errHeader is in the chain when the engine sends something else than a stream.
var errHeader = errors.New("no header of a stream")

// demux splits what an engine sends for a container without a terminal: before
// each piece a byte for the stream (1 and 2; 3 is the engine's own word), three
// zeros and the piece's length in four. The client's module holds a whole piece in
// memory, up to 4 GiB; here it is passed on as it comes.
func demux(stdout, stderr io.Writer, from io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		head := buf[:8]
		if _, err := io.ReadFull(from, head); err != nil {
			return err // io.EOF between two pieces
		}
		to := stderr
		switch head[0] {
		case 1:
			to = stdout
		case 2, 3:
		default:
			return fmt.Errorf("kind %d: %w", head[0], errHeader)
		}
		piece := io.LimitReader(from, int64(binary.BigEndian.Uint32(head[4:])))
		if _, err := io.CopyBuffer(to, piece, buf); err != nil {
			return err
		}
	}
}

// spill writes until nobody reads any more, then drops.
type spill struct{ to *os.File }

func (s spill) Write(b []byte) (int, error) {
	_, _ = s.to.Write(b)
	return len(b), nil
}

// drop ends both pipes. Output is read and dropped from here on.
func (p *pump) drop() {
	_ = p.stdin.Close()
	_ = p.stdout.Close()
}

// dropAfter gives output that is on its way a moment.
func (p *pump) dropAfter(patience time.Duration) {
	select {
	case <-p.ended:
	case <-time.After(patience):
	}
	p.drop()
}

// close ends the connection.
func (p *pump) close() {
	p.drop()
	_ = p.stream.conn.Close()
}

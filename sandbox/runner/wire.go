package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

const (
	// maxPacket bounds one message; a longer packet is refused unread.
	maxPacket = 64 << 10
	// maxFiles bounds the descriptors of one message.
	maxFiles = 2
)

// op is what a request asks for.
type op string

const (
	opHello        op = "hello"
	opFacts        op = "facts"
	opOpenJob      op = "open_job"
	opCreate       op = "create"
	opApplied      op = "applied"
	opCounters     op = "counters"
	opFreeze       op = "freeze"
	opCollect      op = "collect"
	opCloseSandbox op = "close_sandbox"
	opCloseJob     op = "close_job"
	opSweep        op = "sweep"
	opReclaim      op = "reclaim"
)

// request is everything that the supervisor can ask of the runner. No field can
// hold a host path: images, layers, jobs and sandboxes go by id.
type request struct {
	ID      uint64           `json:"id"`
	Op      op               `json:"op"`
	Policy  string           `json:"policy,omitempty"` // digest, in hello
	Job     sandbox.JobID    `json:"job,omitempty"`
	Sandbox string           `json:"sandbox,omitempty"`
	Limits  *policies.Limits `json:"limits,omitempty"` // of a job
	Spec    *sandbox.Spec    `json:"spec,omitempty"`
	Parts   []sandbox.Part   `json:"parts,omitempty"`

	files []*os.File // sent beside it
	cause error      // why it can't be read; nothing else is set then
}

// reply answers the request of the same id. Create sends the pipes of PID 1
// with it: standard input, standard output.
type reply struct {
	ID       uint64            `json:"id"`
	Error    *failure          `json:"error,omitempty"`
	Sandbox  string            `json:"sandbox,omitempty"`
	Layers   []sandbox.LayerID `json:"layers,omitempty"`
	Applied  *sandbox.Applied  `json:"applied,omitempty"`
	Counters *sandbox.Counters `json:"counters,omitempty"`
	Report   *sandbox.Report   `json:"report,omitempty"`
	Swept    sandbox.Swept     `json:"swept,omitempty"`
	Freed    int64             `json:"freed,omitempty"` // bytes, of reclaim

	files []*os.File
}

// failure is a sandbox.Error on the wire.
type failure struct {
	Kind sandbox.Kind `json:"kind"`
	Op   string       `json:"op"`
	Text string       `json:"text"`
}

// ErrMessage is wrapped by every error about a packet that breaks the rules of
// the wire. The connection ends with it.
var ErrMessage = errors.New("malformed message")

// conn carries one JSON message a packet. send may be called at once, receive
// from one goroutine.
type conn struct {
	unix *net.UnixConn
	mu   sync.Mutex // one packet at a time; guards nothing else
	buf  []byte     // receive's
}

// newConn takes over a SOCK_SEQPACKET socket.
func newConn(f *os.File) (*conn, error) {
	defer f.Close() // FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("opening the runner's socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("runner's socket is no unix socket: %w", ErrMessage)
	}
	return &conn{unix: u, buf: make([]byte, maxPacket+1)}, nil
}

// send writes one message. The files stay the caller's.
func (c *conn) send(message any, files []*os.File) error {
	raw, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encoding message: %w", err)
	}
	if len(raw) > maxPacket {
		return fmt.Errorf("message of %d bytes: %w", len(raw), ErrMessage)
	}
	rights, done, err := rightsOf(files)
	if err != nil {
		return err
	}
	defer done()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, _, err := c.unix.WriteMsgUnix(raw, rights, nil); err != nil {
		return fmt.Errorf("sending message: %w", err)
	}
	return nil
}

// rightsOf duplicates the descriptors for the time of sending: File.Fd would
// switch a pipe to blocking mode for everybody who holds it.
func rightsOf(files []*os.File) (rights []byte, done func(), err error) {
	var fds []int
	done = func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("passing a descriptor: %w", err)
		}
		var fd int
		var dupErr error
		err = raw.Control(func(p uintptr) { fd, dupErr = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 3) })
		if err = errors.Join(err, dupErr); err != nil {
			done()
			return nil, nil, fmt.Errorf("passing a descriptor: %w", err)
		}
		fds = append(fds, fd)
	}
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return rights, done, nil
}

// errUnknown is wrapped when a packet is a message, but asks for what no
// message has: the one who sent it can be told so.
var errUnknown = errors.New("unknown field or value")

// receive reads one message into message and returns the files sent with it,
// which are the caller's also beside an errUnknown. The end of the other side
// is io.EOF.
func (c *conn) receive(message any) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.unix.ReadMsgUnix(c.buf, oob)
	if err != nil {
		return nil, err
	}
	files, err := filesOf(oob[:oobn])
	if err != nil {
		return nil, err
	}
	if n == 0 && len(files) == 0 {
		return nil, io.EOF
	}
	if n > maxPacket || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeFiles(files)
		return nil, fmt.Errorf("packet is too long: %w", ErrMessage)
	}
	return files, decode(c.buf[:n], message)
}

// decode refuses unknown fields and anything behind the message.
func decode(raw []byte, message any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(message); err != nil && json.Valid(raw) {
		return fmt.Errorf("%w: %w", errUnknown, err)
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrMessage, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("bytes behind a message: %w", ErrMessage)
	}
	return nil
}

// filesOf opens the descriptors of a control message. They are made
// non-blocking so that Close ends a Read or Write that waits.
func filesOf(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("reading descriptors: %w", errors.Join(err, ErrMessage))
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			closeFiles(files)
			return nil, fmt.Errorf("reading descriptors: %w", errors.Join(err, ErrMessage))
		}
		for _, fd := range fds {
			_ = unix.SetNonblock(fd, true) // pipes take it; nothing else is sent
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

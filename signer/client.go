package signer

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Client asks the signer process. Its methods may run at once; Sign calls take
// turns.
type Client struct {
	runtimeID  protocol.RuntimeID
	key        ed25519.PublicKey
	weakenings []string
	process    *os.Process
	conn       *net.UnixConn
	done       chan struct{}
	closing    sync.Once
	// turn holds one value while nobody uses conn and next.
	turn chan struct{}
	next uint64
}

// RuntimeID returns the identity's name.
func (c *Client) RuntimeID() protocol.RuntimeID { return c.runtimeID }

// PublicKey returns the identity's public key, 32 bytes. It must not be changed.
func (c *Client) PublicKey() ed25519.PublicKey { return c.key }

// Weakenings returns a sentence for each thing that this kernel can't take away
// from the signer.
func (c *Client) Weakenings() []string { return slices.Clone(c.weakenings) }

// PID returns the signer's process id.
func (c *Client) PID() int { return c.process.Pid }

// Done is closed when the process has ended, for whatever reason. Nothing is
// signed afterwards: the daemon says so and takes no more work.
func (c *Client) Done() <-chan struct{} { return c.done }

// Sign returns the signature of one statement. It is in the signing log, synced.
// Errors wrap ErrRefused, ErrLog, ErrGone or the context's error; after the last
// the statement may have been signed and logged all the same, and asking again
// gives the same signature.
func (c *Client) Sign(ctx context.Context, s Statement) (Signature, error) {
	text, err := s.text()
	if err != nil {
		return "", fmt.Errorf("signing %s: %w", s.kind(), err)
	}
	select {
	case <-c.turn:
		defer func() { c.turn <- struct{}{} }()
	case <-c.done:
		return "", fmt.Errorf("signing %s: %w", s.kind(), ErrGone)
	case <-ctx.Done():
		return "", fmt.Errorf("signing %s: %w", s.kind(), ctx.Err())
	}
	signature, err := c.ask(ctx, s)
	if err != nil {
		return "", fmt.Errorf("signing %s: %w", s.kind(), err)
	}
	if !signature.valid(c.key, text) {
		return "", fmt.Errorf("signing %s: the signature is not valid: %w", s.kind(), ErrRefused)
	}
	return signature, nil
}

// ask sends one request and waits for its answer. The caller holds the turn.
func (c *Client) ask(ctx context.Context, s Statement) (Signature, error) {
	c.next++
	packet, err := encodeRequest(c.next, s)
	if err != nil {
		return "", err
	}
	defer c.bound(ctx)()
	if _, err := c.conn.Write(packet); err != nil {
		return "", c.lost(ctx, err)
	}
	for {
		got, err := readAnswer(c.conn)
		if err != nil {
			return "", c.lost(ctx, err)
		}
		if got.N == c.next {
			return got.Signature, got.failure()
		}
		// An answer to one that gave up waiting: not ours.
	}
}

// bound lets ctx end what waits on the socket, until the returned function is
// called; that one also waits for a deadline that is just being set, which would
// else hit the next request.
func (c *Client) bound(ctx context.Context) (release func()) {
	_ = c.conn.SetDeadline(time.Time{}) // fails on a closed socket only
	set := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetDeadline(unixEpoch)
		close(set)
	})
	return func() {
		if !stop() {
			<-set
		}
	}
}

// lost tells a caller that gave up from a signer that ended.
func (c *Client) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

func readAnswer(conn *net.UnixConn) (answer, error) {
	buffer := make([]byte, maxPacket)
	n, err := conn.Read(buffer)
	if err != nil {
		return answer{}, err
	}
	var got answer
	if err := json.Unmarshal(buffer[:n], &got); err != nil {
		return answer{}, fmt.Errorf("reading an answer: %w", err)
	}
	return got, nil
}

func (a answer) failure() error {
	kinds := map[string]error{errorRefused: ErrRefused, errorLog: ErrLog, errorState: ErrState}
	switch kind, known := kinds[a.Error]; {
	case a.Error == "":
		return nil
	case known:
		return fmt.Errorf("%w: %s", kind, a.Detail)
	}
	return fmt.Errorf("%w: %s", ErrGone, a.Detail)
}

// closeWait is how long Close lets the signer end by itself.
const closeWait = 2 * time.Second

// Close ends the signer and waits for its end; a second call does the same. A
// hung signer is killed, where this process may still do that; where it may not,
// the error wraps os.ErrDeadlineExceeded and the signer is left behind.
func (c *Client) Close() error {
	c.closing.Do(func() { _ = c.conn.Close() }) // its end of the socket reads EOF
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	select {
	case <-c.done:
		return nil
	case <-timer.C:
	}
	if err := c.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending a signer that hangs: %w: %w", os.ErrDeadlineExceeded, err)
	}
	<-c.done
	return nil
}

// await closes done once the process has ended.
func (c *Client) await(command *exec.Cmd) {
	_ = command.Wait() // its end is all that counts; its words are in the log
	close(c.done)
}

// unixEpoch as a deadline ends a wait at once.
var unixEpoch = time.Unix(1, 0)

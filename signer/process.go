package signer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
)

// Subcommand is the hidden first argument under which the executable must call
// Main with the arguments after it.
const Subcommand = "__signer"

// The descriptors that the parent passes. 0 and 1 are /dev/null, 2 is its log.
const (
	socketFD = 3
	logFD    = 4
	firstFD  = 5 // nothing of others' may be open from here
)

// exitState is the exit code for unusable state.
const exitState = 78

// Main is the signer process: args are the identity directory, the uid and the
// gid to switch to (-1 stays). It returns the exit code once the parent has
// closed its end of the socket.
func Main(args []string) int {
	if err := serve(args); err != nil {
		tell(answer{Error: errorWord(err), Detail: err.Error()})
		fmt.Fprintln(os.Stderr, "signer:", err)
		if errors.Is(err, ErrState) {
			return exitState
		}
		return 1
	}
	return 0
}

func serve(args []string) error {
	id, log, err := open(args)
	if err != nil {
		return err
	}
	uid, gid, err := parseIDs(args[1:])
	if err != nil {
		return err
	}
	// From here on the key is in memory, the log is open, and that is all.
	weakenings, err := confine.Lockdown{
		UID: uid, GID: gid,
		Rules:  &confine.Rules{NoNetwork: true},
		Filter: confine.SignerFilter,
	}.Apply()
	if err != nil {
		return fmt.Errorf("locking the signer down: %w", err)
	}
	greeting := hello{RuntimeID: id.runtimeID, PublicKey: id.public(), Weakenings: weakenings}
	if err := tell(answer{Hello: &greeting}); err != nil {
		return err
	}
	return answerAll(id, log)
}

// open does all that needs the file system.
func open(args []string) (*identity, *ledger, error) {
	if len(args) != 3 {
		return nil, nil, fmt.Errorf("want 3 arguments, got %d: %w", len(args), unix.EINVAL)
	}
	if err := confine.CloseForeign(firstFD); err != nil {
		return nil, nil, err
	}
	log, read, err := openLedger(logFD)
	if err != nil {
		return nil, nil, err
	}
	id, err := openIdentity(args[0], log, read)
	return id, log, err
}

func parseIDs(args []string) (uid, gid int, err error) {
	uid, err = strconv.Atoi(args[0])
	if err == nil {
		gid, err = strconv.Atoi(args[1])
	}
	if err != nil {
		return 0, 0, fmt.Errorf("reading the ids to switch to: %w", err)
	}
	return uid, gid, nil
}

// answerAll serves one request after the other until the parent is gone.
func answerAll(id *identity, log *ledger) error {
	buffer := make([]byte, maxPacket+1) // one more shows an oversized packet
	for {
		n, err := unix.Read(socketFD, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading a request: %w", err)
		}
		if n == 0 {
			return nil
		}
		if err := tell(respond(id, log, buffer[:n])); err != nil {
			return err
		}
	}
}

// respond signs one statement. The record is on disk before the answer exists:
// a crash between both leaves a signature that nobody has, and asking again
// gives the same one.
func respond(id *identity, log *ledger, packet []byte) answer {
	n, statement, err := decodeRequest(packet)
	if err != nil {
		return refusal(n, err)
	}
	text, err := statement.text()
	if err != nil {
		return refusal(n, err)
	}
	if c, ok := statement.(Connect); ok && c.RuntimeID != id.runtimeID {
		return refusal(n, fmt.Errorf("runtime id is another identity's: %w", ErrRefused))
	}
	signature := sign(id.key, text)
	if err := log.record(statement, signature); err != nil {
		return refusal(n, err)
	}
	return answer{N: n, Signature: signature}
}

func refusal(n uint64, err error) answer {
	return answer{N: n, Error: errorWord(err), Detail: err.Error()}
}

func errorWord(err error) string {
	switch {
	case errors.Is(err, ErrRefused):
		return errorRefused
	case errors.Is(err, ErrLog):
		return errorLog
	case errors.Is(err, ErrState):
		return errorState
	}
	return errorOther
}

func tell(a answer) error {
	text, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encoding an answer: %w", err)
	}
	for {
		_, err = unix.Write(socketFD, text)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("writing an answer: %w", err)
	}
	return nil
}

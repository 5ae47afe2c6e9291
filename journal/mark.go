package journal

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
)

// mark is the file "written": how many transactions were committed at least. A
// write-ahead log that is cut or gone leaves an older journal that looks whole;
// only this number, kept outside, tells. It is written after each commit and
// not synced: a crash of the machine may leave it too low, never too high.
type mark struct {
	file *os.File
}

const markName = "written"

// markText has one length for every count, so that it is overwritten in place
// and within one sector.
func markText(writes int64) []byte {
	number := fmt.Sprintf("%020d", writes)
	return fmt.Appendf(nil, "%s %x\n", number, sha256.Sum256([]byte(number)))
}

// readMark returns 0 if there is no mark: a crash right after the journal was
// made leaves none.
func readMark(path string) (int64, error) {
	text, err := durable.ReadFile(path, 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the journal's mark: %w: %w", ErrState, err)
	}
	const digits = 20
	var writes int64
	if len(text) > digits {
		writes, err = strconv.ParseInt(string(text[:digits]), 10, 64)
	}
	if err != nil || writes < 0 || string(text) != string(markText(writes)) {
		return 0, fmt.Errorf("the journal's mark %q is damaged: %w", path, ErrState)
	}
	return writes, nil
}

func openMark(path string, writes int64) (*mark, error) {
	if err := errors.Join(durable.WriteFile(path, markText(writes), 0o600), give(path)); err != nil {
		return nil, fmt.Errorf("making the journal's mark: %w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the journal's mark: %w", err)
	}
	return &mark{file: file}, nil
}

// set never fails a transaction that is committed already: a mark that is too
// low is allowed.
func (m *mark) set(writes int64) {
	_, _ = m.file.WriteAt(markText(writes), 0)
}

func (m *mark) close() error { return errors.Join(m.file.Sync(), m.file.Close()) }

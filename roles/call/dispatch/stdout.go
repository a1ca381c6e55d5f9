package dispatch

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// Stdout returns a writer to a file descriptor. It reports a broken pipe as an error,
// while os.Stdout would end the process: an ADD must be undone if the runtime does
// not read its result.
func Stdout(fd int) io.Writer { return descriptor(fd) }

type descriptor int

// Write writes all of b or returns an error.
func (d descriptor) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := unix.Write(int(d), b[written:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

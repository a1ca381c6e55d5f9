package dispatch

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// firstSocket is the descriptor of the first passed socket.
	firstSocket = 3
	// maxSockets bounds the sockets that are taken, in case LISTEN_FDS is wrong.
	maxSockets = 16
)

// sockets returns the LISTEN_FDS sockets that a service manager opened for this
// process (sd_listen_fds(3)). It returns none unless LISTEN_PID is this process.
func (p *Process) sockets() []*os.File {
	pid, err := strconv.Atoi(getenv(p.Env, "LISTEN_PID"))
	if err != nil || pid != os.Getpid() {
		return nil
	}
	n, err := strconv.Atoi(getenv(p.Env, "LISTEN_FDS"))
	if err != nil || n < 0 {
		return nil
	}
	var out []*os.File
	for fd := firstSocket; fd < firstSocket+min(n, maxSockets); fd++ {
		unix.CloseOnExec(fd)
		out = append(out, os.NewFile(uintptr(fd), "LISTEN_FD_"+strconv.Itoa(fd)))
	}
	return out
}

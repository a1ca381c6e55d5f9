package nights

import (
	"errors"
	"net"
	"strconv"
	"time"
)

// askFrom sends a query for example.com from a port to port 53 or another of a server, and wants an answer: the arguments are the
// client's port, the server's address, and its port.
func askFrom(args []string) error {
	if len(args) != 3 {
		return errors.New("want PORT SERVER PORT")
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	server, err := net.ResolveUDPAddr("udp", net.JoinHostPort(args[1], args[2]))
	if err != nil {
		return err
	}
	conn, err := net.DialUDP("udp", &net.UDPAddr{Port: port}, server)
	if err != nil {
		return err
	}
	defer conn.Close()
	const patience = 500 * time.Millisecond
	_ = conn.SetDeadline(time.Now().Add(patience)) // a UDP socket has deadlines
	if _, err := conn.Write([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 512))
	return err
}

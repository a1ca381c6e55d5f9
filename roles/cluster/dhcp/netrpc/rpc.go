package netrpc

import "fmt"

// The first lines of a connection in both directions (net/rpc, HandleHTTP).
const (
	connectLine   = "CONNECT /_goRPC_ HTTP/1.0"
	connectedLine = "HTTP/1.0 200 Connected to Go RPC"
)

// request precedes a call's arguments.
type request struct {
	ServiceMethod string
	Seq           uint64
}

// response precedes a call's result.
type response struct {
	ServiceMethod string
	Seq           uint64
	Error         string
	// Code is the kind of error. Programs that use net/rpc neither send nor read it.
	Code uint64
}

// Error is an error that a server returned.
type Error struct {
	Text string
	// Code is the kind of error; 0 from a server that uses net/rpc.
	Code uint64
	// NoMethod means that the server does not know the method.
	NoMethod bool
}

func (e *Error) Error() string { return e.Text }

// noMethod returns net/rpc's text for an unknown method.
func noMethod(method string) string { return "rpc: can't find method " + method }

// failure returns the response's error as an *Error, or nil.
func (r *response) failure(method string) error {
	if r.Error == "" {
		return nil
	}
	// net/rpc has another text if the whole service is unknown.
	unknown := r.Error == noMethod(method) || r.Error == fmt.Sprintf("rpc: can't find service %s", method)
	return &Error{Text: r.Error, Code: r.Code, NoMethod: unknown}
}

package netrpc

import "fmt"

// What goes over the connection before the calls (net/rpc, HandleHTTP).
const (
	connectLine   = "CONNECT /_goRPC_ HTTP/1.0"
	connectedLine = "HTTP/1.0 200 Connected to Go RPC"
)

// request comes before a call's arguments.
type request struct {
	ServiceMethod string
	Seq           uint64
}

// response comes before a call's result.
type response struct {
	ServiceMethod string
	Seq           uint64
	Error         string
	// Code says what kind of error it is; programs that use net/rpc neither send nor see it.
	Code uint64
}

// Error is what a server answered instead of a result.
type Error struct {
	Text string
	// Code is the server's own; 0 from a server that uses net/rpc.
	Code uint64
	// NoMethod tells that the server does not know the method: it is an older one.
	NoMethod bool
}

func (e *Error) Error() string { return e.Text }

// noMethod is the text that net/rpc has for an unknown method.
func noMethod(method string) string { return "rpc: can't find method " + method }

// failure makes an Error of a response; nil without one.
func (r *response) failure(method string) error {
	if r.Error == "" {
		return nil
	}
	// net/rpc says "service" when it has no such service at all.
	unknown := r.Error == noMethod(method) || r.Error == fmt.Sprintf("rpc: can't find service %s", method)
	return &Error{Text: r.Error, Code: r.Code, NoMethod: unknown}
}

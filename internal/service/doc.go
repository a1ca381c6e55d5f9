// Package service is how a daemon answers other programs of its node, and how they ask it.
//
// A daemon has one Unix socket, to which only root can connect, and beside it a lock, so only one process of the node has it. A client writes
// one line of JSON, and the daemon answers with lines of JSON and closes the connection:
//
//	{"ask":"policy.choose","args":{"namespace":"default","name":"web-0"}}
//	{"end":true,"data":{"ingress":"pod_0"}}
//
// A long answer has lines with "data" only before the one with "end". In place of its data the last line has "error" if the daemon refuses, and
// "absent" if nothing in it answers requests of that name.
package service

import (
	"errors"
	"time"
)

// What the agent's socket is asked.
const (
	// Status is for 'cnibox agent status'. nodeipam's socket answers to it, too. Rates are what the links of the node carried in the last hour.
	Status = "status"
	Rates  = "rates"
	// A plugin asks for a block of a range or a reservation, and tells that addresses were given out or released. RangeReread is for
	// 'cnibox migrate whereabouts'.
	RangeLease   = "range.lease"
	RangeReserve = "range.reserve"
	RangeReread  = "range.reread"
	RangeNotify  = "range.notify"
	// A plugin asks for the chains of a pod, and lets the agent add or delete its elements. The others are for 'cnibox policy' and 'cnibox drops'.
	PolicyChoose = "policy.choose"
	PolicyAdd    = "policy.add"
	PolicyDel    = "policy.del"
	PolicyState  = "policy.state"
	PolicyDenied = "policy.denied"
	PolicyOff    = "policy.off"
	// A plugin waits until the packets of a pod leave with its egress address. EgressExplain is for 'cnibox path'.
	EgressAdmit   = "egress.admit"
	EgressExplain = "egress.explain"
)

const (
	// MaxRequest and MaxAnswer bound a request and an answer in bytes. The policies and pods of 100,000 pods have 30 MB.
	MaxRequest = 256 << 10
	MaxAnswer  = 1 << 30
	// maxError bounds the text of an error in bytes.
	maxError = 2000
	// maxClients are served at a time, and others wait. Each has requestTime to send its request, and answerTime to read the answer.
	maxClients  = 1000
	requestTime = 5 * time.Second
	answerTime  = 30 * time.Second
	// graceTime is what remains of these times when the daemon ends.
	graceTime = 200 * time.Millisecond
	// checkTime is the interval in which the socket's file is made again if another program deleted it.
	checkTime = 2 * time.Second
	// acceptDelay is the delay after a failed accept, for example because the process has too many open files.
	acceptDelay = 100 * time.Millisecond
)

var (
	// ErrAbsent means that no process listens on a socket, or that nothing in it answers such a request.
	ErrAbsent = errors.New("no process listens")
	// ErrTooLong means that a request is longer than MaxRequest.
	ErrTooLong = errors.New("the request is too long")
	// ErrRuns means that another process has the lock of a socket.
	ErrRuns = errors.New("a daemon runs already")
)

// Error is the error that a daemon answers with.
type Error string

func (e Error) Error() string { return string(e) }

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/test/await"
	"github.com/cnibox/cnibox/test/ovs"
)

const database = "Open_vSwitch"

func bridges(name string) Operation {
	return Operation{
		Op: "select", Table: "Bridge", Where: []Condition{{"name", "==", name}},
		Columns: []string{"_uuid", "name", "external_ids", "flood_vlans", "mcast_snooping_enable"},
	}
}

// TestServer makes transactions on a real server.
func TestServer(t *testing.T) {
	s := ovs.StartDatabase(t)
	c, err := Dial(t.Context(), "unix:"+s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is lost with it
	transact := func(ops ...Operation) []Result {
		t.Helper()
		r, err := c.Transact(t.Context(), database, ops...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	root := transact(Operation{Op: "select", Table: "Open_vSwitch", Where: []Condition{}, Columns: []string{"_uuid"}})[0].Rows
	if len(root) != 1 || root[0].ID() == "" {
		t.Fatalf("rows of Open_vSwitch: %v", root)
	}
	add := func(name string) []Operation {
		return []Operation{
			{Op: "insert", Table: "Bridge", UUIDName: "b", Row: map[string]any{
				"name": name, "external_ids": Map(map[string]string{"b": "2 \"\\", "a": "1"}), "flood_vlans": Set(7, 5),
			}},
			{Op: "mutate", Table: "Open_vSwitch", Where: []Condition{{"_uuid", "==", UUID(root[0].ID())}}, Mutations: []Mutation{{"bridges", "insert", Set(NamedUUID("b"))}}},
		}
	}
	if r := transact(add("br1")...); r[1].Count != 1 {
		t.Errorf("%d rows were changed", r[1].Count)
	}
	r := transact(bridges("br1"), bridges("none"))
	if len(r[0].Rows) != 1 || len(r[1].Rows) != 0 {
		t.Fatalf("rows %v", r)
	}
	row := r[0].Rows[0]
	have := []any{row.ID() != "", row.Text("name"), row.Map("external_ids"), row.Ints("flood_vlans"), row.Text("mcast_snooping_enable"), row.Text("none"), row.Ints("name"), row.Map("name")}
	want := []any{true, "br1", map[string]string{"a": "1", "b": "2 \"\\"}, []int{5, 7}, "", "", []int(nil), map[string]string(nil)}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("-want +have:\n%s", diff)
	}

	var refused *Error
	if _, err := c.Transact(t.Context(), database, add("br1")...); !errors.As(err, &refused) || refused.Name != "constraint violation" || refused.Operation != 2 {
		t.Errorf("a second bridge of one name: %v", err)
	}
	if _, err := c.Transact(t.Context(), database, Operation{Op: "insert", Table: "None", Row: map[string]any{}}); !errors.As(err, &refused) || IsTimeout(err) {
		t.Errorf("a row of no table: %v", err)
	}
	wait := Operation{Op: "wait", Table: "Bridge", Where: []Condition{{"name", "==", "br1"}}, Columns: []string{"flood_vlans"}, Until: "==", Rows: []map[string]any{{"flood_vlans": Set()}}, Timeout: 1}
	if _, err := c.Transact(t.Context(), database, wait); !IsTimeout(err) {
		t.Errorf("a condition that is not met: %v", err)
	}
	wait.Until = "!="
	transact(wait) // the connection is usable after a refused transaction
	if _, err := c.Transact(t.Context(), "none", wait); err == nil {
		t.Error("a database that does not exist answers")
	}
}

// TestFrozen: a call ends with its context, and the connection is not used again.
func TestFrozen(t *testing.T) {
	s := ovs.StartDatabase(t)
	defer s.Freeze(t)()
	c, err := Dial(t.Context(), s.Socket) // the kernel accepts it
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is lost with it
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range 2 {
		if _, err := c.Transact(ctx, database, bridges("br1")); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a server that does not answer: %v", err)
		}
		ctx = t.Context()
	}
}

// served returns a connection to a server that serves one request.
func served(t testing.TB, serve func(server net.Conn)) *Conn {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close() //nolint:errcheck // it is the end
		var request json.RawMessage
		if json.NewDecoder(theirs).Decode(&request) == nil {
			serve(theirs)
		}
	}()
	t.Cleanup(func() {
		ours.Close() //nolint:errcheck // the server ends
		<-done
	})
	return newConn(ours)
}

// answering returns a connection to a server that sends bytes, and reads what it gets meanwhile.
func answering(t testing.TB, answer []byte) *Conn {
	return served(t, func(server net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, server) }()
		_, _ = server.Write(answer)
	})
}

// TestAnswers: messages that are no answer are ignored or answered, and malformed ones are errors.
func TestAnswers(t *testing.T) {
	const ok = `{"id":1,"result":[{"rows":[]}],"error":null}`
	for name, c := range map[string]struct {
		answer string
		want   error
	}{
		"answer":                        {ok, nil},
		"notification before":           {`{"method":"update","params":["x",{}],"id":null} {"method":"echo","params":[],"id":null}` + ok, nil},
		"another answer before":         {`{"id":"1","result":[],"error":null}{"id":0,"result":[],"error":null}` + ok, nil},
		"nothing":                       {"", io.ErrUnexpectedEOF},
		"half":                          {ok[:20], io.ErrUnexpectedEOF},
		"no JSON":                       {"HTTP/1.1 400 Bad Request\r\n", ErrProtocol},
		"a list":                        {`[]`, ErrProtocol},
		"a number":                      {`7`, ErrProtocol},
		"wrong types":                   {`{"id":1,"method":7}`, ErrProtocol},
		"no result":                     {`{"id":1}`, ErrProtocol},
		"result of another type":        {`{"id":1,"result":{"a":1}}`, ErrProtocol},
		"no results":                    {`{"id":1,"result":[]}`, ErrProtocol},
		"too many results":              {`{"id":1,"result":[{},{}]}`, ErrProtocol},
		"an error in place of a result": {`{"id":1,"result":null,"error":{"error":"unknown database"}}`, ErrProtocol},
		"too large":                     {`{"id":1,"result":[{"details":"` + strings.Repeat("x", maxMessage) + `"}]}`, ErrProtocol},
		"too deep":                      {strings.Repeat("[", 20_000), ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := answering(t, []byte(c.answer)).Transact(t.Context(), database, bridges("br1"))
			if !errors.Is(err, c.want) {
				t.Errorf("have %v, want %v", err, c.want)
			}
		})
	}
}

// TestEcho: the server's question whether we are alive is answered.
func TestEcho(t *testing.T) {
	var reply struct {
		ID     string
		Result []string
	}
	conn := served(t, func(server net.Conn) {
		_ = server.SetDeadline(await.Deadline())
		_, _ = io.WriteString(server, `{"method":"echo","params":["a"],"id":"echo"}`)
		if err := json.NewDecoder(server).Decode(&reply); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(server, `{"id":1,"result":[{}],"error":null}`)
	})
	if _, err := conn.Transact(t.Context(), database, bridges("br1")); err != nil || reply.ID != "echo" || !slices.Equal(reply.Result, []string{"a"}) {
		t.Errorf("the server received %+v, %v", reply, err)
	}
}

// TestEndpoint: texts of the key socket_file.
func TestEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"": "unix " + DefaultSocket, "unix:/a": "unix /a", "/a:b": "unix /a:b", "tcp:127.0.0.1:6640": "tcp 127.0.0.1:6640", "tcp:[::1]:6640": "tcp [::1]:6640",
		"ssl:127.0.0.1:6640": ErrTLS.Error(), "tcp:127.0.0.1": ErrEndpoint.Error(), "tcp:127.0.0.1:0": ErrEndpoint.Error(), "tcp:127.0.0.1:99999": ErrEndpoint.Error(),
		"unix:a": ErrEndpoint.Error(), "db.sock": ErrEndpoint.Error(), "ptcp:6640": ErrEndpoint.Error(),
	} {
		network, address, err := Endpoint(text)
		have := network + " " + address
		if err != nil {
			have = err.Error()
		}
		if have != want {
			t.Errorf("%q: %s, want %s", text, have, want)
		}
	}
}

// FuzzAnswer: no bytes of a server make a call panic or hang.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"id":1,"result":[{"rows":[{"_uuid":["uuid","x"],"a":["map",[["k","v"]]],"b":["set",[1,2]],"c":7}]}],"error":null}`))
	f.Add([]byte(`{"method":"echo","params":[],"id":"echo"}{"id":1,"result":[{"error":"timed out","details":"x"}]}`))
	f.Add([]byte(`{"id":1,"result":[{"rows":[{"_uuid":[],"a":["map",[["k"],[]]],"b":["set"],"c":["set",["x"]]}]}]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		r, err := answering(t, answer).Transact(t.Context(), database, bridges("br1"))
		if err != nil {
			return
		}
		for _, row := range r[0].Rows {
			for column := range row {
				_, _, _, _ = row.ID(), row.Text(column), row.Ints(column), row.Map(column)
			}
		}
	})
}

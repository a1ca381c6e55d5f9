package grpc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// Types and flags of frames (RFC 9113, section 6).
const (
	typeData, typeHeaders, typeSettings, typePing, typeContinuation = 0, 1, 4, 6, 9

	flagAck, flagEndStream, flagEndHeaders, flagPadded, flagPriority = 1, 1, 4, 8, 0x20
)

// Bounds in bytes: of a frame's payload and of a list of header fields, and of all that a server sends for one reply.
const maxFrame, maxBytes = 16 << 10, 2 * maxReply

// preface is what a client sends first: SETTINGS, and WINDOW_UPDATE of the connection.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
	"\x00\x00\x12\x04\x00\x00\x00\x00\x00" +
	"\x00\x01\x00\x00\x00\x00" + // SETTINGS_HEADER_TABLE_SIZE 0: the server cannot refer to its earlier fields
	"\x00\x02\x00\x00\x00\x00" + // SETTINGS_ENABLE_PUSH 0
	"\x00\x04\x00\x10\x00\x05" + // SETTINGS_INITIAL_WINDOW_SIZE maxReply+5: no window is ever extended
	"\x00\x00\x04\x08\x00\x00\x00\x00\x00" + "\x00\x10\x00\x00"

// Header fields of a call (RFC 7541, appendix A has the names' numbers): :method POST, :scheme http, :authority, :path, content-type, te.
const (
	fieldsBefore = "\x83\x86" + "\x01\x09localhost" + "\x04"
	fieldsAfter  = "\x0f\x10\x10application/grpc" + "\x00\x02te\x08trailers"
)

func appendFrame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// opening returns all that a client sends for a call, except acknowledgements. The method has less than 127 bytes.
func opening(method string, request []byte) []byte {
	b := appendFrame([]byte(preface), typeHeaders, flagEndHeaders, 1, []byte(fieldsBefore+string(rune(len(method)))+method+fieldsAfter))
	message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
	return appendFrame(b, typeData, flagEndStream, 1, message)
}

// answer is what a server sends on the stream of a call.
type answer struct {
	data []byte
	// http is the HTTP status; status and text are the call's.
	http, status, text string
}

// read reads until the server ends the stream, and acknowledges settings and pings. Servers of gRPC neither pad frames nor send priorities.
func (a *answer) read(conn io.ReadWriter) error {
	r := bufio.NewReader(io.LimitReader(conn, maxBytes))
	var fields []byte
	for end := false; !end || fields != nil; {
		var head [9]byte
		_, err := io.ReadFull(r, head[:])
		payload := make([]byte, min(int(head[0])<<16|int(head[1])<<8|int(head[2]), maxFrame+1))
		if err == nil && len(payload) <= maxFrame {
			_, err = io.ReadFull(r, payload)
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		kind, flags := head[3], head[4]
		isFields := kind == typeHeaders || kind == typeContinuation
		switch {
		case err != nil:
		case len(payload) > maxFrame, kind != typeSettings && binary.BigEndian.Uint32(head[5:]) > 1,
			kind == typeData && flags&flagPadded != 0, kind == typeHeaders && flags&(flagPadded|flagPriority) != 0:
			err = errReply("frame % x", head)
		case (kind == typeSettings || kind == typePing) && flags&flagAck == 0:
			if kind == typeSettings {
				payload = nil
			}
			_, err = conn.Write(appendFrame(nil, kind, flagAck, 0, payload))
		case kind == typeData:
			a.data = append(a.data, payload...)
		case isFields:
			fields = append(fields, payload...)
		case kind != typeSettings && kind != typePing && kind != 8: // WINDOW_UPDATE
			err = errReply("frame % x: % x", head, payload[:min(len(payload), 64)])
		}
		if len(fields) > maxFrame || len(a.data) > maxReply+5 {
			err = errReply("more than %d bytes", maxReply)
		}
		if err == nil && isFields && flags&flagEndHeaders != 0 {
			err = a.readFields(fields)
			fields = nil
		}
		if err != nil {
			return err
		}
		end = end || (kind == typeData || kind == typeHeaders) && flags&flagEndStream != 0
	}
	return nil
}

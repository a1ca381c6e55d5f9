package rest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/cnibox/cnibox/store/cluster/web"
)

// Objects are requested as protobuf if a kind supports it. For ten thousand Nodes the server needs a
// third of the time that it needs for JSON, and unwanted fields are skipped. The generated.proto files
// of k8s.io/api and k8s.io/apimachinery define the messages. "Alternate representations of resources"
// in https://kubernetes.io/docs/reference/using-api/api-concepts/ describes their encoding.
const (
	protobufType  = "application/vnd.kubernetes.protobuf"
	protobufWatch = protobufType + ";stream=watch, application/json"
	protobufList  = protobufType + ", application/json"
)

// protobufMagic precedes each object. A runtime.Unknown follows.
const protobufMagic = "k8s\x00"

// errProtobuf means that the message is not the expected protobuf.
var errProtobuf = errors.New("unexpected protobuf")

// Message is a Kind that can be read from protobuf.
type Message interface {
	// Member reads one field of the object by its number. The metadata was already read.
	Member(number int, b []byte) error
}

// isProtobuf reports whether a reply is protobuf.
func isProtobuf(resp *http.Response) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && kind == protobufType
}

// Members calls each with the fields of a message that are messages, strings or bytes, and skips the
// others.
func Members(b []byte, each func(number int, b []byte) error) error {
	return members(b, func(number int, v []byte, _ uint64) error {
		if v == nil {
			return nil
		}
		return each(number, v)
	})
}

// members calls each with all fields of a message. For a number, n is the value and v is nil.
func members(b []byte, each func(number int, v []byte, n uint64) error) error {
	for len(b) > 0 {
		tag, size := binary.Uvarint(b)
		if size <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errProtobuf
		}
		b = b[size:]
		var v []byte
		var n uint64
		switch tag & 7 {
		case 0: // a number
			if n, size = binary.Uvarint(b); size <= 0 {
				return errProtobuf
			}
		case 1: // eight bytes
			size = 8
		case 2: // a length and as many bytes
			length, k := binary.Uvarint(b)
			if k <= 0 || length > uint64(len(b)-k) {
				return errProtobuf
			}
			size = k + int(length)
			v = b[k:size:size]
		case 5: // four bytes
			size = 4
		default:
			return errProtobuf
		}
		if size > len(b) {
			return errProtobuf
		}
		b = b[size:]
		if err := each(int(tag>>3), v, n); err != nil {
			return err
		}
	}
	return nil
}

// unwrap returns the object in a runtime.Unknown.
func unwrap(b []byte) (object []byte, err error) {
	b, ok := bytes.CutPrefix(b, []byte(protobufMagic))
	if !ok {
		return nil, errProtobuf
	}
	err = Members(b, func(number int, v []byte) error {
		if number == 2 {
			object = v
		}
		return nil
	})
	return object, err
}

// readMessage reads an object.
func readMessage(b []byte, o *Object, m Message) error {
	return Members(b, func(number int, v []byte) error {
		if number == 1 {
			return o.Metadata.member(v)
		}
		return m.Member(number, v)
	})
}

// member reads a metav1.ObjectMeta.
func (m *Metadata) member(b []byte) error {
	return Members(b, func(number int, v []byte) error {
		switch number {
		case 1:
			m.Name = string(v)
		case 3:
			m.Namespace = string(v)
		case 5:
			m.UID = string(v)
		case 6:
			m.ResourceVersion = string(v)
		case 9:
			return m.deleted(v)
		case 12:
			var entry [2]string
			err := Members(v, func(number int, v []byte) error {
				if number == 1 || number == 2 {
					entry[number-1] = strings.ToValidUTF8(string(v), "\ufffd")
				}
				return nil
			})
			if m.Annotations == nil {
				m.Annotations = map[string]string{}
			}
			m.Annotations[entry[0]] = entry[1]
			return err
		}
		return nil
	})
}

// deleted reads a metav1.Time into DeletionTimestamp.
func (m *Metadata) deleted(b []byte) error {
	return members(b, func(number int, _ []byte, n uint64) error {
		if number == 1 {
			m.DeletionTimestamp = time.Unix(int64(n), 0).UTC().Format(time.RFC3339)
		}
		return nil
	})
}

// readStatus reads a metav1.Status into e.
func (e *StatusError) readStatus(b []byte) error {
	return members(b, func(number int, v []byte, n uint64) error {
		switch number {
		case 3:
			e.Message = string(v)
		case 4:
			e.Reason = string(v)
		case 5: // StatusDetails
			return Members(v, func(number int, v []byte) error {
				if number != 4 { // StatusCause
					return nil
				}
				return Members(v, func(number int, v []byte) error {
					if number == 3 {
						e.Fields = append(e.Fields, string(v))
					}
					return nil
				})
			})
		case 6:
			e.Code = int(int32(n))
		}
		return nil
	})
}

// frames reads the messages of a watch. The length precedes each message.
type frames struct {
	r   io.Reader
	buf []byte
}

// next returns the next message, which is valid until the following call. It returns io.EOF at the end
// of the stream before a message.
func (f *frames) next() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > maxObject {
		return nil, web.ErrTooLarge
	}
	if cap(f.buf) < size {
		// The buffer grows with the received bytes, because the announced length may be false.
		var all bytes.Buffer
		if _, err := io.CopyN(&all, f.r, int64(size)); err != nil {
			return nil, whole(err)
		}
		f.buf = all.Bytes()
		return f.buf, nil
	}
	f.buf = f.buf[:size]
	_, err := io.ReadFull(f.r, f.buf)
	return f.buf, whole(err)
}

// readProtobufList reads a list as readList does.
func readProtobufList[P Kind](ctx context.Context, resp *http.Response, each func(P) bool) (meta listMeta, err error) {
	l := listing{r: bufio.NewReaderSize(resp.Body, 64<<10)}
	err = l.items(func(number int, b []byte) error {
		switch number {
		case 1:
			return meta.member(b)
		case 2:
			o := empty[P]()
			m, ok := any(o).(Message)
			if !ok {
				return fmt.Errorf("%w: this kind was not requested as protobuf", errProtobuf)
			}
			if err := readMessage(b, o.object(), m); err != nil {
				return err
			}
			if !each(o) {
				return errEndless
			}
		}
		return nil
	})
	if err != nil {
		return listMeta{}, lost(ctx, "list", whole(err))
	}
	return meta, nil
}

// member reads a metav1.ListMeta.
func (m *listMeta) member(b []byte) error {
	return Members(b, func(number int, v []byte) error {
		switch number {
		case 2:
			m.ResourceVersion = string(v)
		case 3:
			m.Continue = string(v)
		}
		return nil
	})
}

// listing reads a list in its runtime.Unknown, with one member in memory at a time.
type listing struct {
	r   *bufio.Reader
	buf bytes.Buffer
}

// items calls each with the members of the list.
func (l *listing) items(each func(number int, b []byte) error) error {
	var magic [len(protobufMagic)]byte
	if _, err := io.ReadFull(l.r, magic[:]); err != nil || string(magic[:]) != protobufMagic {
		return errors.Join(err, errProtobuf)
	}
	for {
		number, size, _, err := l.head()
		switch {
		case err != nil:
			return whole(err)
		case number == 2:
			return l.within(size, each)
		}
		if _, err := io.CopyN(io.Discard, l.r, size); err != nil {
			return whole(err)
		}
	}
}

// within calls each with the members of a message of left bytes.
func (l *listing) within(left int64, each func(number int, b []byte) error) error {
	for left > 0 {
		number, size, head, err := l.head()
		if err != nil {
			return whole(err)
		}
		left -= head + size
		if left < 0 {
			return errProtobuf
		}
		if size > maxObject {
			return web.ErrTooLarge
		}
		l.buf.Reset()
		if _, err := io.CopyN(&l.buf, l.r, size); err != nil {
			return whole(err)
		}
		if err := each(number, l.buf.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// head reads the start of a field that is a message, string or bytes: its number, its size, and the
// length of this start. Lists and their wrappers have no other fields.
func (l *listing) head() (number int, size, head int64, err error) {
	var n [2]uint64
	for i := range n {
		for shift := 0; ; shift += 7 {
			b, err := l.r.ReadByte()
			if err != nil {
				return 0, 0, 0, err
			}
			if shift > 28 {
				return 0, 0, 0, errProtobuf
			}
			head++
			n[i] |= uint64(b&0x7f) << shift
			if b < 0x80 {
				break
			}
		}
	}
	if n[0]&7 != 2 || n[0]>>3 == 0 {
		return 0, 0, 0, errProtobuf
	}
	return int(n[0] >> 3), int64(n[1]), head, nil
}

// readEvent reads a metav1.WatchEvent. It returns the content of an ERROR event as the error.
func readEvent[P Kind](b []byte) (kind string, object P, err error) {
	var wrapped []byte
	err = Members(b, func(number int, v []byte) error {
		switch number {
		case 1:
			kind = string(v)
		case 2: // a runtime.RawExtension
			return Members(v, func(number int, v []byte) error {
				if number == 1 {
					wrapped = v
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && wrapped == nil {
		err = errNoObject
	}
	if err != nil {
		return "", object, err
	}
	raw, err := unwrap(wrapped)
	if err != nil {
		return "", object, err
	}
	if kind == "ERROR" {
		e := &StatusError{}
		if err := e.readStatus(raw); err != nil {
			return "", object, err
		}
		return "", object, e
	}
	object = empty[P]()
	m, ok := any(object).(Message)
	if !ok {
		return "", object, fmt.Errorf("%w: this kind was not requested as protobuf", errProtobuf)
	}
	return kind, object, readMessage(raw, object.object(), m)
}

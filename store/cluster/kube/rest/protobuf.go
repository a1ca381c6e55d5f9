package rest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"reflect"
	"strconv"
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

// isProtobuf reports whether a reply is protobuf.
func isProtobuf(resp *http.Response) bool {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && kind == protobufType
}

// canProtobuf reports whether the server can send a kind as protobuf: a field beside the metadata has a number.
func canProtobuf[P Kind]() bool { return len(layoutOf(reflect.TypeFor[P]().Elem())) > 1 }

// layout has the wanted fields of a message by their numbers. They are those of a struct whose tag protobuf is the number.
type layout map[int]target

// target is a field of a struct.
type target struct {
	index []int
	// fields are those of a message, of the messages of a list, or of the entries of a map.
	fields layout
	// isTime is true if the message is a metav1.Time and the struct's field is its text, as in JSON.
	isTime bool
}

// mapEntry is a message in place of an entry of a map.
type mapEntry struct {
	Key   string `protobuf:"1"`
	Value string `protobuf:"2"`
}

func layoutOf(t reflect.Type) layout {
	switch {
	case t.Kind() == reflect.Slice:
		return layoutOf(t.Elem())
	case t.Kind() == reflect.Map:
		return layoutOf(reflect.TypeFor[mapEntry]())
	case t.Kind() != reflect.Struct:
		return nil
	}
	l := layout{}
	for _, f := range reflect.VisibleFields(t) {
		text, isTime := strings.CutSuffix(f.Tag.Get("protobuf"), ",time")
		if number, err := strconv.Atoi(text); err == nil {
			l[number] = target{f.Index, layoutOf(f.Type), isTime}
		}
	}
	return l
}

// read stores the wanted fields of a message in a struct, and skips the others.
func (l layout) read(b []byte, into reflect.Value) error {
	return members(b, func(number int, v []byte, n uint64) error {
		to, wanted := l[number]
		if !wanted {
			return nil
		}
		f := into.FieldByIndex(to.index)
		switch {
		case f.Kind() == reflect.Int:
			f.SetInt(int64(int32(n)))
		case v != nil:
			return to.set(f, v)
		}
		return nil
	})
}

// ReadMessage stores the wanted fields of a message in the struct that into points to.
func ReadMessage(b []byte, into any) error {
	v := reflect.ValueOf(into).Elem()
	return layoutOf(v.Type()).read(b, v)
}

// set stores a message, string or bytes.
func (to *target) set(f reflect.Value, v []byte) error {
	switch {
	case to.isTime:
		return members(v, func(number int, _ []byte, n uint64) error {
			if number == 1 {
				f.SetString(time.Unix(int64(n), 0).UTC().Format(time.RFC3339))
			}
			return nil
		})
	case f.Kind() == reflect.String:
		f.SetString(strings.ToValidUTF8(string(v), "\ufffd"))
		return nil
	case f.Kind() == reflect.Struct:
		return to.fields.read(v, f)
	case f.Kind() == reflect.Map:
		var e mapEntry
		if f.IsNil() {
			f.Set(reflect.MakeMap(f.Type()))
		}
		err := to.fields.read(v, reflect.ValueOf(&e).Elem())
		f.SetMapIndex(reflect.ValueOf(e.Key), reflect.ValueOf(e.Value))
		return err
	case f.Type().Elem().Kind() == reflect.Uint8:
		f.SetBytes(v)
		return nil
	}
	f.Set(reflect.Append(f, reflect.Zero(f.Type().Elem())))
	return to.set(f.Index(f.Len()-1), v)
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

// field returns a message, string or bytes of a message, or nil.
func field(b []byte, number int) (found []byte, err error) {
	err = members(b, func(n int, v []byte, _ uint64) error {
		if n == number {
			found = v
		}
		return nil
	})
	return found, err
}

// unwrap returns the object in a runtime.Unknown.
func unwrap(b []byte) (object []byte, err error) {
	b, ok := bytes.CutPrefix(b, []byte(protobufMagic))
	if !ok {
		return nil, errProtobuf
	}
	return field(b, 2)
}

// readProtobufList reads a list as readList does, with one object in memory at a time.
func readProtobufList[P Kind](ctx context.Context, resp *http.Response, each func(P) bool) (meta listMeta, err error) {
	r, fields, found := bufio.NewReaderSize(resp.Body, 64<<10), layoutOf(reflect.TypeFor[P]().Elem()), false
	var magic [len(protobufMagic)]byte
	_, err = io.ReadFull(r, magic[:])
	if err != nil || string(magic[:]) != protobufMagic {
		return meta, lost(ctx, "list", errors.Join(err, errProtobuf))
	}
	var buf bytes.Buffer
	err = eachField(r, func(number int, list *io.LimitedReader) error {
		if number != 2 {
			return nil
		}
		found = true
		return eachField(bufio.NewReader(list), func(number int, in *io.LimitedReader) error {
			if in.N > maxObject {
				return web.ErrTooLarge
			}
			buf.Reset()
			if _, err := buf.ReadFrom(in); err != nil || in.N > 0 {
				return err
			}
			switch number {
			case 1:
				return ReadMessage(buf.Bytes(), &meta)
			case 2:
				o := empty[P]()
				if err := fields.read(buf.Bytes(), reflect.ValueOf(o).Elem()); err != nil {
					return err
				}
				if !each(o) {
					return errEndless
				}
			}
			return nil
		})
	})
	if err == nil && !found {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return listMeta{}, lost(ctx, "list", err)
	}
	return meta, nil
}

// eachField calls each with the fields of a message, and skips what each does not read. All fields of lists and of their
// wrappers are messages, strings or bytes.
func eachField(r *bufio.Reader, each func(number int, in *io.LimitedReader) error) error {
	for {
		tag, err := binary.ReadUvarint(r)
		if err == io.EOF { //nolint:errorlint // ErrUnexpectedEOF is an error
			return nil
		}
		size, sizeErr := binary.ReadUvarint(r)
		if err := errors.Join(err, sizeErr); err != nil {
			return whole(err)
		}
		if tag&7 != 2 || tag>>3 == 0 || tag>>3 > 1<<29-1 || size > math.MaxInt64 {
			return errProtobuf
		}
		in := &io.LimitedReader{R: r, N: int64(size)}
		if err := each(int(tag>>3), in); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, in); err != nil {
			return err
		}
		if in.N > 0 {
			return io.ErrUnexpectedEOF
		}
	}
}

// whole replaces io.EOF inside a value by an error.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// protobufEvents reads the events of a protobuf watch. The length precedes each message.
func protobufEvents[P Kind](r io.Reader) func() (string, P, error) {
	buffered, fields := bufio.NewReaderSize(r, 64<<10), layoutOf(reflect.TypeFor[P]().Elem())
	var buf bytes.Buffer
	return func() (kind string, object P, err error) {
		var size uint32
		if err := binary.Read(buffered, binary.BigEndian, &size); err != nil {
			return "", object, err
		}
		if size > maxObject {
			return "", object, web.ErrTooLarge
		}
		buf.Reset() // it grows with the received bytes, because the announced length may be false
		if _, err := io.CopyN(&buf, buffered, int64(size)); err != nil {
			return "", object, whole(err)
		}
		return readEvent[P](buf.Bytes(), fields)
	}
}

// readEvent reads a metav1.WatchEvent. It returns the content of an ERROR event as the error.
func readEvent[P Kind](b []byte, fields layout) (kind string, object P, err error) {
	name, err := field(b, 1)
	if err != nil {
		return "", object, err
	}
	extension, err := field(b, 2) // a runtime.RawExtension
	if err != nil {
		return "", object, err
	}
	wrapped, err := field(extension, 1)
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
	if string(name) == "ERROR" {
		var s status
		if err = ReadMessage(raw, &s); err == nil {
			err = s.failure()
		}
		return "", object, err
	}
	object = empty[P]()
	return string(name), object, fields.read(raw, reflect.ValueOf(object).Elem())
}

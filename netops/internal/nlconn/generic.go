package nlconn

import (
	"context"

	"golang.org/x/sys/unix"
)

// GenericHeader is the size of struct genlmsghdr.
const GenericHeader = 4

// NewGeneric returns a request of a generic netlink family. The caller appends the
// attributes.
func NewGeneric(family uint16, command, version byte) Message {
	return Message{Kind: family, Body: Body{command, version, 0, 0}}
}

// Family asks for the number of a generic netlink family. The kernel may load the module
// of the family.
func (c *Conn) Family(ctx context.Context, name string) (uint16, error) {
	m := NewGeneric(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 1)
	m.Text(unix.CTRL_ATTR_FAMILY_NAME, name)
	answer, err := c.Query(ctx, m)
	if err != nil {
		return 0, Explain(err, "netlink family "+name)
	}
	id, err := Find(answer[min(GenericHeader, len(answer)):], unix.CTRL_ATTR_FAMILY_ID)
	if err == nil && len(id) < 2 {
		err = ErrDamaged
	}
	return uint16(Short(id)), Explain(err, "netlink family "+name)
}

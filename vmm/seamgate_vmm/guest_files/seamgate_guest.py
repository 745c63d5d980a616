"""Runs inside a guest: what of the standard library behaves differently there, put in place once, in the template.

TLS: HTTPS stays unmodified Python, but the bytes that leave are plaintext. A wrapped socket, or an SSLObject between
two MemoryBIOs, first sends a preface that names the server, then passes bytes through. The gateway on the other side
does the real TLS, and always verifies, whatever the guest's context says.

What a guest cannot do (processes, listening sockets) raises an OSError that says so by name.
"""

# Runs in guests only and patches private parts of the standard library, which stubs do not know.
# mypy: ignore-errors
# pyright: basic, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportArgumentType=false, reportMissingImports=false
# pyright: reportIncompatibleVariableOverride=false, reportIndexIssue=false
# ruff: noqa: D102
import errno
import os
import socket
import ssl

PREFACE = b"\0SGTLS1\n"  # then u16 big-endian length, then `server name NUL protocols joined by commas`
_MAX_NAME = 255
_INSTEAD = "seamgate run --isolation netns has it"


def _preface(server_hostname, protocols):
    name = (server_hostname or "").encode("idna" if not (server_hostname or "").isascii() else "ascii")[:_MAX_NAME]
    body = name + b"\0" + b",".join(p.encode("ascii") for p in protocols)
    return PREFACE + len(body).to_bytes(2, "big") + body


def _certificate(name):
    """What getpeercert() says: the gateway has verified that the server is `name`."""
    kind = "IP Address" if name and name.replace(".", "").isdigit() else "DNS"
    return {
        "subject": ((("commonName", name),),),
        "issuer": ((("commonName", "Seamgate"),),),
        "version": 3,
        "notBefore": "Jan  1 00:00:00 2020 GMT",
        "notAfter": "Jan  1 00:00:00 2120 GMT",
        "subjectAltName": ((kind, name),),
    }


class _Session:
    """What both kinds of connection answer about their TLS."""

    def version(self):
        return "TLSv1.3"

    def cipher(self):
        return ("TLS_AES_128_GCM_SHA256", "TLSv1.3", 128)

    def shared_ciphers(self):
        return [self.cipher()]

    def compression(self):
        return None

    def selected_alpn_protocol(self):
        offered = self.context.__dict__.get("_seamgate_protocols", ())
        return "http/1.1" if "http/1.1" in offered else None

    def selected_npn_protocol(self):
        return None

    def get_channel_binding(self, cb_type="tls-unique"):
        if cb_type not in ssl.CHANNEL_BINDING_TYPES:
            raise ValueError(f"{cb_type} channel binding not implemented")
        return None

    def getpeercert(self, binary_form=False):
        if binary_form:
            return None
        return _certificate(self.server_hostname) if self.context.verify_mode != ssl.CERT_NONE else {}

    def verify_client_post_handshake(self):
        raise ssl.SSLError("a guest has no certificate of its own")

    def _opening(self):
        return _preface(self.server_hostname, self.context.__dict__.get("_seamgate_protocols", ()))


def _check(context, server_side, server_hostname):
    if server_side:
        raise OSError(errno.EOPNOTSUPP, f"a guest cannot be a TLS server; {_INSTEAD}")
    if context.check_hostname and not server_hostname:
        raise ValueError("check_hostname requires server_hostname")
    if server_hostname is not None and (not server_hostname or server_hostname.startswith(".")):
        raise ValueError("server_hostname cannot be an empty string or start with a leading dot.")


class PlainSocket(_Session, ssl.SSLSocket):
    """An SSLSocket whose bytes are plaintext after a preface."""

    @classmethod
    def _create(
        cls,
        sock,
        server_side=False,
        do_handshake_on_connect=True,
        suppress_ragged_eofs=True,
        server_hostname=None,
        context=None,
        session=None,
    ):
        _check(context, server_side, server_hostname)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_STREAM:
            raise NotImplementedError("only stream sockets are supported")
        timeout = sock.gettimeout()
        self = cls.__new__(cls, family=sock.family, type=sock.type, proto=sock.proto, fileno=sock.fileno())
        socket.socket.__init__(self, family=sock.family, type=sock.type, proto=sock.proto, fileno=sock.fileno())
        sock.detach()
        self.settimeout(timeout)
        self._context = context
        self._session = None
        self._closed = False
        self._sslobj = None
        self.server_side = False
        self.server_hostname = server_hostname
        self.do_handshake_on_connect = do_handshake_on_connect
        self.suppress_ragged_eofs = suppress_ragged_eofs
        self._preface_left = None
        self._connected = True
        try:
            self.getpeername()
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            self._connected = False
        if self._connected and do_handshake_on_connect and timeout != 0.0:
            self.do_handshake()
        return self

    @property
    def context(self):
        return self._context

    @context.setter
    def context(self, value):
        self._context = value

    @property
    def session(self):
        return None

    @property
    def session_reused(self):
        return False

    def do_handshake(self, block=False):
        if self._preface_left is None:
            self._preface_left = self._opening()
        while self._preface_left:
            try:
                sent = socket.socket.send(self, self._preface_left)
            except BlockingIOError as error:
                raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "the preface is not sent yet") from error
            self._preface_left = self._preface_left[sent:]

    def _real_connect(self, addr, connect_ex):
        if self._connected:
            raise ValueError("attempt to connect already-connected SSLSocket!")
        result = socket.socket.connect_ex(self, addr) if connect_ex else socket.socket.connect(self, addr)
        if not result:
            self._connected = True
            if self.do_handshake_on_connect:
                self.do_handshake()
        return result

    def _ready(self):
        if self._preface_left is None or self._preface_left:
            self.do_handshake()

    def read(self, len=1024, buffer=None):
        return self.recv(len) if buffer is None else self.recv_into(buffer, len)

    def write(self, data):
        return self.send(data)

    def send(self, data, flags=0):
        self._ready()
        try:
            return socket.socket.send(self, data, flags)
        except BlockingIOError as error:
            raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "no room") from error

    def sendall(self, data, flags=0):
        self._ready()
        return socket.socket.sendall(self, data, flags)

    def sendfile(self, file, offset=0, count=None):
        return self._sendfile_use_send(file, offset, count)

    def recv(self, buflen=1024, flags=0):
        self._ready()
        try:
            return socket.socket.recv(self, buflen, flags)
        except BlockingIOError as error:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing to read") from error

    def recv_into(self, buffer, nbytes=None, flags=0):
        self._ready()
        try:
            return socket.socket.recv_into(self, buffer, nbytes or len(buffer), flags)
        except BlockingIOError as error:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing to read") from error

    def pending(self):
        return 0

    def shutdown(self, how):
        socket.socket.shutdown(self, how)

    def unwrap(self):
        return self

    def _checkClosed(self, msg=None):
        pass

    def _check_connected(self):
        self.getpeername()


class PlainObject(_Session, ssl.SSLObject):
    """An SSLObject that passes bytes between its BIOs after a preface."""

    @classmethod
    def _create(cls, incoming, outgoing, server_side=False, server_hostname=None, session=None, context=None):
        _check(context, server_side, server_hostname)
        self = cls.__new__(cls)
        self._context, self._in, self._out = context, incoming, outgoing
        self._hostname, self._greeted = server_hostname, False
        return self

    @property
    def context(self):
        return self._context

    @context.setter
    def context(self, value):
        self._context = value

    @property
    def server_hostname(self):
        return self._hostname

    @property
    def server_side(self):
        return False

    @property
    def session(self):
        return None

    @property
    def session_reused(self):
        return False

    def do_handshake(self):
        if not self._greeted:
            self._greeted = True
            self._out.write(self._opening())

    def read(self, len=1024, buffer=None):
        self.do_handshake()
        data = self._in.read(len)
        if not data and not self._in.eof:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing to read")
        if buffer is None:
            return data
        buffer[: data.__len__()] = data
        return data.__len__()

    def write(self, data):
        self.do_handshake()
        return self._out.write(data)

    def pending(self):
        return self._in.pending

    def unwrap(self):
        return None


_STOCK = {ssl.PROTOCOL_TLS_CLIENT: 8, ssl.PROTOCOL_TLS: 2}


def _stocked(new):
    """Make a template's first few contexts ahead: OpenSSL counts references in some eighty pages for each new one."""
    stock = {protocol: [new(ssl.SSLContext, protocol) for _ in range(count)] for protocol, count in _STOCK.items()}

    def __new__(cls, protocol=None, *args, **kwargs):
        if cls is ssl.SSLContext and stock.get(protocol) and not args and not kwargs:
            return stock[protocol].pop()
        return new(cls, protocol, *args, **kwargs)

    def restock():
        for protocol, count in _STOCK.items():
            while len(stock[protocol]) < count:
                stock[protocol].append(new(ssl.SSLContext, protocol))

    global restock_contexts
    restock_contexts = restock
    return __new__


def _plain_tls():
    context = ssl.SSLContext
    context.sslsocket_class = PlainSocket
    context.sslobject_class = PlainObject
    set_protocols = context.set_alpn_protocols

    def set_alpn_protocols(self, alpn_protocols):
        self.__dict__["_seamgate_protocols"] = tuple(alpn_protocols)
        set_protocols(self, alpn_protocols)

    def load_nothing(self, *args, **kwargs):
        """Trust is decided by the gateway; loading a hundred certificates here would only cost memory."""

    def load_verify_locations(self, cafile=None, capath=None, cadata=None):
        if cafile is None and capath is None and cadata is None:
            raise TypeError("cafile, capath and cadata cannot be all omitted")
        for path in (cafile, capath):
            if path is not None:
                os.stat(path)

    context.__new__ = _stocked(context.__new__)
    context.set_alpn_protocols = set_alpn_protocols
    context.load_default_certs = load_nothing
    context.set_default_verify_paths = load_nothing
    context.load_verify_locations = load_verify_locations


def _clear_refusals():
    def no_process(*args, **kwargs):
        raise OSError(errno.ENOSYS, f"processes are not supported in a guest (fork, exec, subprocess); {_INSTEAD}")

    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "system", "popen"):
        if hasattr(os, name):
            setattr(os, name, no_process)
    import _posixsubprocess

    _posixsubprocess.fork_exec = no_process

    def no_bind(self, address):
        raise OSError(errno.EOPNOTSUPP, f"bind is not supported in a guest: it cannot listen; {_INSTEAD}")

    def no_listen(self, backlog=0):
        raise OSError(errno.EOPNOTSUPP, f"listen is not supported in a guest; {_INSTEAD}")

    socket.socket.bind = no_bind
    socket.socket.listen = no_listen
    _name_refused_sockets()


def _name_refused_sockets():
    whats = {errno.EOPNOTSUPP: "raw sockets are", errno.EAFNOSUPPORT: "this family of sockets is"}
    make, send_to = socket.socket.__init__, socket.socket.sendto

    def named_make(self, *args, **kwargs):
        try:
            make(self, *args, **kwargs)
        except OSError as error:
            what = whats.get(error.errno)
            if what is None:
                raise
            raise OSError(error.errno, f"{what} not supported in a guest; {_INSTEAD}") from None

    def named_send_to(self, *args):
        try:
            return send_to(self, *args)
        except OSError as error:
            if error.errno != errno.ENETUNREACH:
                raise
            text = f"datagrams are not supported in a guest, but for names (port 53); {_INSTEAD}"
            raise OSError(error.errno, text) from None

    socket.socket.__init__, socket.socket.sendto = named_make, named_send_to


def install():
    """Put everything in place. Called once, before the template's modules are imported."""
    _plain_tls()
    _clear_refusals()

# Builds the hot path's extension, `seamgate._native`, and that of network namespaces, `seamgate._connects`. Included by the
# root Makefile; also `make -f proxy/build.mk
# native-build`. Where nobody built it, its twins in Python run.
NATIVE_PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
NATIVE_CC ?= gcc
NATIVE_INCLUDE = $(shell $(NATIVE_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')
NATIVE_CFLAGS = -O3 -g -std=gnu11 -fPIC -Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-cast-function-type \
	-fvisibility=hidden -D_FORTIFY_SOURCE=2 -fstack-protector-strong
NATIVE_SOURCES = $(wildcard proxy/native/*.c)

native-build: proxy/seamgate/_native.so proxy/seamgate/_connects.so

proxy/seamgate/_native.so: $(NATIVE_SOURCES) proxy/native/native.h
	$(NATIVE_CC) $(NATIVE_CFLAGS) -I$(NATIVE_INCLUDE) -shared -Wl,-z,relro,-z,now -o $@ $(NATIVE_SOURCES) -ldl

proxy/seamgate/_connects.so: proxy/native/netns/connects.c
	$(NATIVE_CC) $(NATIVE_CFLAGS) -I$(NATIVE_INCLUDE) -shared -Wl,-z,relro,-z,now -o $@ $<

native-clean:
	rm -f proxy/seamgate/_native.so proxy/seamgate/_connects.so

.PHONY: native-build native-clean

#!/bin/sh
# Installs what `make bench` needs from Debian's or Ubuntu's packages: the compiler and headers for the load generator,
# nginx (the upstream, and the floor), Squid with OpenSSL, and dnsperf, dnsmasq and unbound. The peers from PyPI install themselves on the first run.
#
# The packages' own services are not used; where they were not there before, they are not left running.
set -eu

packages="dnsmasq-base dnsperf gcc libc6-dev libssl-dev nginx-light squid-openssl unbound util-linux"

had_nginx=$(command -v /usr/sbin/nginx || true)
had_unbound=$(command -v /usr/sbin/unbound || true)
had_squid=$(command -v /usr/sbin/squid || true)

as_root=""
if [ "$(id -u)" != 0 ]; then
    as_root=sudo
fi

$as_root apt-get update -q
# shellcheck disable=SC2086  # the list is meant to be split
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends $packages

if [ -d /run/systemd/system ]; then
    [ -n "$had_nginx" ] || $as_root systemctl disable --now nginx
    [ -n "$had_unbound" ] || $as_root systemctl disable --now unbound
    [ -n "$had_squid" ] || $as_root systemctl disable --now squid
fi

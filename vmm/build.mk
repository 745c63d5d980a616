# Builds the guest's shim and the extension `_kvm`. Included by the root Makefile; also `make -f vmm/build.mk kvm-build`.
#   kvm-build  shim.bin, vdso.so and _kvm.so in vmm/seamgate_vmm      kvm-test  the tests that need /dev/kvm
#   kvm-analyze  gcc's static analyser over all C                      kvm-clean
KVM_PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
KVM_CC ?= gcc
KVM_INCLUDE = $(shell $(KVM_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')
KVM_CFLAGS = -O2 -g -std=gnu11 -fPIC -Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-cast-function-type \
	-fvisibility=hidden -D_FORTIFY_SOURCE=2 -fstack-protector-strong
KVM_SOURCES = vmm/seamgate_vmm/_kvm.c vmm/seamgate_vmm/_kvm_ring.c vmm/seamgate_vmm/_kvm_host.c \
	vmm/native/machine.c vmm/native/fixed.c vmm/native/memory.c vmm/native/pages.c vmm/native/attach.c \
	vmm/native/run.c vmm/native/probe.c vmm/native/trim.c vmm/native/ring.c vmm/native/jail.c
KVM_HEADERS = vmm/seamgate_vmm/_kvm.h vmm/native/machine.h vmm/native/machine_internal.h vmm/native/ring.h vmm/native/jail.h shim/wire.h
KVM_OUT = vmm/seamgate_vmm

kvm-build: $(KVM_OUT)/_kvm.so $(KVM_OUT)/shim.bin $(KVM_OUT)/vdso.bin

$(KVM_OUT)/_kvm.so: $(KVM_SOURCES) $(KVM_HEADERS)
	$(KVM_CC) $(KVM_CFLAGS) -I$(KVM_INCLUDE) -shared -Wl,-z,relro,-z,now -o $@ $(KVM_SOURCES)

$(KVM_OUT)/shim.bin $(KVM_OUT)/vdso.bin &: $(wildcard shim/*.c shim/*.h shim/*.S shim/*.ld) shim/Makefile
	$(MAKE) -C shim CC=$(KVM_CC) OUT=build
	cp shim/build/shim.bin $(KVM_OUT)/shim.bin
	cp shim/build/vdso.so $(KVM_OUT)/vdso.bin

kvm-test: kvm-build
	$(KVM_PYTHON) -m pytest tests/vmm -q

kvm-analyze:
	$(MAKE) -C shim CC=$(KVM_CC) analyze
	for f in $(KVM_SOURCES); do $(KVM_CC) $(KVM_CFLAGS) -I$(KVM_INCLUDE) -fanalyzer -c -o /dev/null $$f || exit 1; done

kvm-clean:
	$(MAKE) -C shim clean
	rm -f $(KVM_OUT)/_kvm*.so $(KVM_OUT)/shim.bin $(KVM_OUT)/vdso.bin

.PHONY: kvm-build kvm-test kvm-analyze kvm-clean

# The ring's host side against hostile memory, for SECONDS; with clang it could be libFuzzer (-DLIBFUZZER).
SECONDS ?= 60
kvm-fuzz:
	@mkdir -p shim/build
	$(KVM_CC) -O1 -g -std=gnu11 -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all -pthread \
		-o shim/build/fuzz_ring tests/vmm/native/fuzz_ring.c vmm/native/ring.c
	shim/build/fuzz_ring $(SECONDS) $$$$

.PHONY: kvm-fuzz

# Where `syscall` lands in ring 0: SVM as QEMU emulates it, with several processors. KERNEL is a .deb, see run.py.
kvm-qemu: kvm-build
	for cpu in EPYC EPYC-Milan; do $(KVM_PYTHON) tests/vmm/qemu/run.py $(KERNEL) --cpu $$cpu || exit 1; done

.PHONY: kvm-qemu

# Builds the guest's shim and the extension `_kvm`. Included by the root Makefile; also `make -f vmm/build.mk kvm-build`.
#   kvm-build  shim.bin, vdso.so and _kvm.so in vmm/seamgate_vmm      kvm-test  the tests that need /dev/kvm
#   kvm-analyze  gcc's static analyser over all C                     kvm-clean
#   fuzz-vmm  what reads what guests wrote, fuzzed for FUZZ_S
KVM_PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
KVM_CC ?= gcc
KVM_INCLUDE = $(shell $(KVM_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')
KVM_CFLAGS = -O2 -g -std=gnu11 -fPIC -Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-cast-function-type \
	-fvisibility=hidden -D_FORTIFY_SOURCE=2 -fstack-protector-strong
KVM_SOURCES = vmm/seamgate_vmm/_kvm.c vmm/seamgate_vmm/_kvm_machine.c vmm/seamgate_vmm/_kvm_memory.c \
	vmm/seamgate_vmm/_kvm_ring.c vmm/seamgate_vmm/_kvm_host.c \
	vmm/native/machine.c vmm/native/fixed.c vmm/native/memory.c vmm/native/pages.c vmm/native/attach.c \
	vmm/native/run.c vmm/native/probe.c vmm/native/trim.c vmm/native/ring.c vmm/native/jail.c
KVM_HEADERS = vmm/seamgate_vmm/_kvm.h vmm/seamgate_vmm/_kvm_machine.h vmm/native/machine.h vmm/native/machine_internal.h vmm/native/ring.h vmm/native/jail.h shim/wire.h
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

# What reads what guests wrote, coverage-guided, FUZZ_S seconds each: the ring's host side (libFuzzer and a thread that
# changes the memory meanwhile; without clang: gcc's sanitizers and a generator), templates and hibernated guests (atheris).
FUZZ_S ?= 60
KVM_FUZZ = shim/build/fuzz_ring
# clang alone is not enough: Debian has its run-time library in libclang-rt-14-dev
HAS_LIBFUZZER = echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return 0; }' \
	| clang -fsanitize=fuzzer -x c -o /dev/null - 2>/dev/null
KVM_FUZZ_SOURCES = tests/vmm/native/fuzz_ring.c vmm/native/ring.c
KVM_FUZZ_CFLAGS = -O1 -g -std=gnu11 -Wall -Wextra -fno-sanitize-recover=all -pthread

$(KVM_FUZZ): $(KVM_FUZZ_SOURCES) vmm/native/ring.h shim/wire.h
	@mkdir -p shim/build
	if $(HAS_LIBFUZZER); then \
	  clang $(KVM_FUZZ_CFLAGS) -fsanitize=fuzzer,address,undefined -DLIBFUZZER -o $@ $(KVM_FUZZ_SOURCES); else \
	  $(KVM_CC) $(KVM_FUZZ_CFLAGS) -fsanitize=address,undefined -o $@ $(KVM_FUZZ_SOURCES); fi

fuzz-vmm: kvm-build $(KVM_FUZZ) ## what reads what guests wrote: FUZZ_S=60 seconds for each of the three
	@mkdir -p build/fuzz-ring
	if $(HAS_LIBFUZZER); then \
	  $(KVM_FUZZ) -max_total_time=$(FUZZ_S) -max_len=4096 -timeout=20 -print_final_stats=1 -artifact_prefix=fuzz-ring- \
	    build/fuzz-ring tests/vmm/corpus/ring; else $(KVM_FUZZ) $(FUZZ_S) $$$$; fi
	for target in templates hibernated; do PYTHONPATH=tests:proxy:plugins:vmm \
	  $(KVM_PYTHON) -m fuzz.run --seconds $(FUZZ_S) --target $$target || exit 1; done

.PHONY: fuzz-vmm

# Where `syscall` lands in ring 0: SVM as QEMU emulates it, with several processors. KERNEL is a .deb, see run.py.
kvm-qemu: kvm-build
	for cpu in EPYC EPYC-Milan; do $(KVM_PYTHON) tests/vmm/qemu/run.py $(KERNEL) --cpu $$cpu || exit 1; done

.PHONY: kvm-qemu

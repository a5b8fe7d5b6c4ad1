/* Preloaded into a process, hands CUPTI only so many buffers as CUPTI_BUFFERS says, each of CUPTI_BUFFER_BYTES:
 * after that CUPTI has nowhere to put what it records, and drops it.
 *
 *     cc -shared -fPIC -o cupti_few_buffers.so cupti_few_buffers.c -ldl
 *     LD_PRELOAD=./cupti_few_buffers.so CUPTI_BUFFERS=2 CUPTI_BUFFER_BYTES=65536 python …
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Request)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*Complete)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size);
typedef int (*Register)(Request, Complete);

static Request profiler_request;
static long handed_out;

static long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

static void request(uint8_t **buffer, size_t *size, size_t *most_records) {
  profiler_request(buffer, size, most_records);
  size_t limit = (size_t)setting("CUPTI_BUFFER_BYTES", 65536);
  if (*size > limit) *size = limit;
  if (++handed_out > setting("CUPTI_BUFFERS", 2)) *size = 0;
}

int cuptiActivityRegisterCallbacks(Request ask, Complete done) {
  Register original = (Register)dlsym(RTLD_NEXT, "cuptiActivityRegisterCallbacks");
  if (!original) {
    void *library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    original = library ? (Register)dlsym(library, "cuptiActivityRegisterCallbacks") : NULL;
  }
  if (!original) {
    fprintf(stderr, "cupti_few_buffers: no CUPTI found\n");
    abort();
  }
  profiler_request = ask;
  fprintf(stderr, "cupti_few_buffers: in place\n");
  return original(request, done);
}

// SPDX-License-Identifier: Apache-2.0
// The kernels of update_kernels.cu, which are a part of the plug-in. The functions of the CUDA
// driver are looked up by name: the plug-in is linked to nothing of CUDA.
#include <cuda.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "farandole/error.h"
#include "farandole/export.h"
#include "farandole/version.h"
#include "optim/device/cuda/kernel_launcher.h"

// What nvcc has made of update_kernels.cu: code for several GPUs, of which the driver takes one.
__asm__(
    ".section .rodata\n"
    ".balign 64\n"
    "farandole_kernel_code:\n"
    ".incbin \"" FARANDOLE_KERNEL_CODE
    "\"\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char farandole_kernel_code[];

namespace farandole {
namespace {

/// PTX for it is the oldest that the plug-in has.
constexpr int kOldestMajor = 7;
constexpr int kOldestMinor = 5;

[[noreturn]] void fail(const std::string& what, const std::string& why) {
  throw SystemError("kernel-launch", what, why,
                    "look for an earlier failure on this GPU, which later calls report; "
                    "CUDA_LAUNCH_BLOCKING=1 finds the operation; or do without these kernels: "
                    "FARANDOLE_DEVICE_KERNELS=torch.");
}

/// The driver's functions, and the kernels that it has loaded.
class Driver {
 public:
  static Driver& get() {
    static Driver driver;
    return driver;
  }

  std::string obstacle(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [known, is_new] = obstacles_.try_emplace(device);
    if (is_new) known->second = find_obstacle(device);
    return known->second;
  }

  void launch(int device, const char* name, const void* arguments, int blocks, int threads,
              void* stream) {
    const CUfunction kernel = find(name);
    make_current(device);
    void* parameters[] = {const_cast<void*>(arguments)};
    check(
        launch_kernel_(kernel, static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(threads),
                       1, 1, 0, static_cast<CUstream>(stream), parameters, nullptr),
        name);
  }

 private:
  Driver() {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      missing_ = std::string("there is no CUDA driver: ") + ::dlerror() + ".";
      return;
    }
    const auto look = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
      if (function == nullptr) missing_ = std::string("the CUDA driver has no ") + name + ".";
    };
    look("cuDeviceGet", device_get_);
    look("cuDeviceGetAttribute", device_attribute_);
    look("cuDevicePrimaryCtxRetain", retain_context_);
    look("cuCtxGetCurrent", current_context_);
    look("cuCtxSetCurrent", set_current_context_);
    look("cuLibraryLoadData", load_library_);
    look("cuLibraryGetKernel", get_kernel_);
    look("cuKernelGetFunction", get_function_);
    look("cuLaunchKernel", launch_kernel_);
    look("cuGetErrorString", error_string_);
  }

  std::string find_obstacle(int index) {
    if (!missing_.empty()) return missing_;
    CUdevice device = 0;
    int major = 0;
    int minor = 0;
    if (device_get_(&device, index) != CUDA_SUCCESS ||
        device_attribute_(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) !=
            CUDA_SUCCESS ||
        device_attribute_(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) !=
            CUDA_SUCCESS) {
      return "the CUDA driver does not know GPU " + std::to_string(index) + ".";
    }
    if (major < kOldestMajor || (major == kOldestMajor && minor < kOldestMinor)) {
      return "GPU " + std::to_string(index) + " has compute capability " + std::to_string(major) +
             "." + std::to_string(minor) + ", and 7.5 is the oldest that they are built for.";
    }
    const CUresult result = load_on(device);
    if (result == CUDA_SUCCESS) return {};
    return "the CUDA driver does not take them for GPU " + std::to_string(index) + ": " +
           text_of(result) + ".";
  }

  /// Loads all kernels on a device, which would otherwise happen in the first step. mutex_ is held.
  CUresult load_on(CUdevice device) {
    CUcontext context = nullptr;
    CUcontext before = nullptr;
    CUresult result = retain_context_(&context, device);  // torch keeps it for the process too
    if (result != CUDA_SUCCESS) return result;
    contexts_[device] = context;
    current_context_(&before);
    result = set_current_context_(context);
    if (result == CUDA_SUCCESS && library_ == nullptr) {
      result =
          load_library_(&library_, farandole_kernel_code, nullptr, nullptr, 0, nullptr, nullptr, 0);
    }
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    if (result == CUDA_SUCCESS) result = get_kernel_(&kernel, library_, "farandole_add_sums");
    if (result == CUDA_SUCCESS) result = get_function_(&function, kernel);
    set_current_context_(before);
    return result;
  }

  CUfunction find(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CUkernel& kernel = kernels_[name];
    if (kernel == nullptr) check(get_kernel_(&kernel, library_, name.c_str()), name.c_str());
    return reinterpret_cast<CUfunction>(kernel);
  }

  /// A thread that has called nothing of the CUDA runtime has no context, and one that uses another
  /// library may have one of that.
  void make_current(int index) {
    CUdevice device = 0;
    check(device_get_(&device, index), "a kernel");
    CUcontext wanted = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      wanted = contexts_.at(device);
    }
    CUcontext context = nullptr;
    if (current_context_(&context) == CUDA_SUCCESS && context == wanted) return;
    check(set_current_context_(wanted), "a kernel");
  }

  std::string text_of(CUresult result) const {
    const char* text = nullptr;
    error_string_(result, &text);
    return text != nullptr ? text : "an unknown error";
  }

  void check(CUresult result, const char* of) const {
    if (result == CUDA_SUCCESS) return;
    fail(std::string("The CUDA driver could not launch ") + of + ".",
         "it answers: " + text_of(result) + ".");
  }

  std::string missing_;
  decltype(&cuDeviceGet) device_get_ = nullptr;
  decltype(&cuDeviceGetAttribute) device_attribute_ = nullptr;
  CUresult (*retain_context_)(CUcontext*, CUdevice) = nullptr;
  CUresult (*current_context_)(CUcontext*) = nullptr;
  CUresult (*set_current_context_)(CUcontext) = nullptr;
  decltype(&cuLibraryLoadData) load_library_ = nullptr;
  decltype(&cuLibraryGetKernel) get_kernel_ = nullptr;
  decltype(&cuKernelGetFunction) get_function_ = nullptr;
  CUresult (*launch_kernel_)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream, void**, void**) = nullptr;
  decltype(&cuGetErrorString) error_string_ = nullptr;

  std::mutex mutex_;
  CUlibrary library_ = nullptr;              ///< guarded by mutex_, as those below
  std::map<std::string, CUkernel> kernels_;  ///< those looked up
  std::map<int, std::string> obstacles_;
  std::map<CUdevice, CUcontext> contexts_;  ///< the primary ones
};

}  // namespace
}  // namespace farandole

extern "C" FARANDOLE_API const void* farandole_cuda_kernels() {
  using farandole::Driver;
  static const farandole::KernelLauncher launcher{
      farandole::version(), [](int device) { return Driver::get().obstacle(device); },
      [](int device, const char* name, const void* arguments, int blocks, int threads,
         void* stream) { Driver::get().launch(device, name, arguments, blocks, threads, stream); }};
  return &launcher;
}

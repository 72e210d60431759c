// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything that a training program needs.

#include "farandole/config.h"
#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/ddp/hooks/compress_hook.h"
#include "farandole/ddp/hooks/power_sgd_hook.h"
#include "farandole/ddp/hooks/top_k_hook.h"
#include "farandole/error.h"
#include "farandole/process_group/collectives.h"
#include "farandole/process_group/init.h"
#include "farandole/process_group/process_group.h"
#include "farandole/process_group/symmetric_tensor.h"
#include "farandole/process_group/work.h"
#include "farandole/version.h"

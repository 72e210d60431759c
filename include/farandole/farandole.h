// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything that a training program needs.

#include "farandole/amp/autocast.h"
#include "farandole/amp/grad_scaler.h"
#include "farandole/config.h"
#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/ddp/hooks/compress_hook.h"
#include "farandole/ddp/hooks/power_sgd_hook.h"
#include "farandole/ddp/hooks/top_k_hook.h"
#include "farandole/error.h"
#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars.h"
#include "farandole/optim/lars_options.h"
#include "farandole/optim/rule_of_options.h"
#include "farandole/optim/sgd.h"
#include "farandole/optim/update_parameters.h"
#include "farandole/optim/zero_redundancy_optimizer.h"
#include "farandole/process_group/collectives.h"
#include "farandole/process_group/init.h"
#include "farandole/process_group/process_group.h"
#include "farandole/process_group/symmetric_tensor.h"
#include "farandole/process_group/work.h"
#include "farandole/version.h"

import type { Clock } from '#base/clock.ts';
import type { KubeClient } from '#wire/kube/client.ts';
import { audiences } from '../names.ts';
import { createTokenReviews, type TokenReviews } from './token-reviews.ts';

/**
 * How long to cache a review. An agent sends a request for each pod that it mounts volumes for, and dozens at once when its node starts.
 */
const cacheMs = 5_000;

/**
 * Reviews the tokens of agents. Anyone who can reach the server can send tokens, so obviously invalid tokens are refused without a review.
 */
export const createAgentReviews = (client: KubeClient, clock: Clock): TokenReviews =>
  createTokenReviews({ client, clock, audience: audiences.agents, cacheMs, serviceAccountsOnly: true });
